"""Who finds the wrong labels? ``ausam.audit`` beside cleanlab, and how often clean data are flagged.

Claim: the ranking is level with cleanlab's best or above it, at least 80 % of the flagged labels are wrong wherever any
are flagged, and of clean data at most 0.5 % are flagged.

    python research/label_errors/scorecard.py predictions FOLDER    # stored predictions, see below
    python research/label_errors/scorecard.py trainings LOGS        # of trainings.py: our own networks
    python research/label_errors/scorecard.py clean LOGS            # of trainings.py: random clean problems

FOLDER holds a file per data set: ``probabilities`` (n, classes) of networks that have not seen the sample, ``given``
and ``true`` labels, as npz. The repository cleanlab/label-error-detection-benchmarks has such predictions of CIFAR-10.
Lower shares of wrong labels are made by leaving wrong ones out. The first two parts need cleanlab 2.9, which gets
out-of-sample predictions: those of a training by 5-fold cross validation, five more trainings, where the audit reads
the one training on all. Each part writes ``PART.json`` beside this file. One thread.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from ausam.audit import Audit, LabelErrors, find_label_errors

HERE = Path(__file__).parent
SHARES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
METHODS = ("SGD", "SAM", "Trusted")


def ranking(score: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """How well a score ranks the wrong labels first; nothing if there are none."""
    k = int(wrong.sum())
    if not k:
        return {}
    first = np.argsort(-score, kind="stable")[:k]
    area, precision = float(roc_auc_score(wrong, score)), float(average_precision_score(wrong, score))
    return {"auc": area, "average_precision": precision, "precision_at_k": float(wrong[first].mean())}


def decision(flagged: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """How many are flagged, how many of these are wrong, and the F1 score."""
    hits = float((flagged & wrong).sum())
    f1 = 2 * hits / max(1, flagged.sum() + wrong.sum())
    return {"flagged": int(flagged.sum()), "hits": hits, "f1": f1}


def ours(errors: LabelErrors, wrong: np.ndarray) -> dict[str, float]:
    """The figures of the audit."""
    score = np.empty(len(wrong))
    score[errors.order] = -np.arange(len(wrong))
    return ranking(score, wrong) | decision(errors.flagged, wrong)


def cleanlabs(labels: np.ndarray, p: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """cleanlab's figures: of its two rankings the better one for each measure, and its default flags."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    methods = ("self_confidence", "normalized_margin")
    rankings = [ranking(-get_label_quality_scores(labels, p, method=method), wrong) for method in methods]
    best = {name: max(each[name] for each in rankings) for name in rankings[0]}
    return best | decision(find_label_issues(labels, p), wrong)


def cases(folder: str) -> Iterator[tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]]:
    """Stored predictions with all or few wrong labels: name and share, labels, probabilities, what is wrong."""
    for path in sorted(Path(folder).glob("*.npz")):
        data = np.load(path)
        p = np.maximum(data["probabilities"].astype(np.float64), 1e-7)
        p /= p.sum(1, keepdims=True)
        given, true = data["given"].astype(np.int64), data["true"].astype(np.int64)
        right, bad = np.flatnonzero(given == true), np.random.default_rng(0).permutation(np.flatnonzero(given != true))
        for share in (*SHARES, len(bad) / len(given)):
            index = np.sort(np.r_[right, bad[: round(share * len(right) / (1 - share))]])
            yield {"data": path.stem, "share": share}, given[index], p[index], (given != true)[index]


def predictions(folder: str) -> list[dict[str, Any]]:
    """Stored predictions of other people's networks."""
    results = []
    for case, labels, p, wrong in cases(folder):
        errors = find_label_errors(labels, probabilities=p)
        case |= {"n": len(labels), "wrong": int(wrong.sum())}
        results.append(case | {"ausam": ours(errors, wrong), "cleanlab": cleanlabs(labels, p, wrong)})
    return results


# -- trainings ---------------------------------------------------------------------------------------------------------


def audited(margin: np.ndarray, given: np.ndarray) -> LabelErrors:
    """What the audit of a training says that was fed these margin losses, a row per epoch."""
    audit = Audit(len(given), given)
    for row in margin:
        index = np.flatnonzero(np.isfinite(row))
        audit.update(torch.from_numpy(index), torch.from_numpy(row[index]))
    return audit.label_errors()


def trainings(folder: str) -> list[dict[str, Any]]:
    """The trainings of ``trainings.py`` whose labels are partly wrong, and some whose labels are right."""
    results = []
    for path in sorted(Path(folder).glob("*-peer.npz")):
        p = np.load(path)["probabilities"]
        data, *noise, seed, _ = path.stem.split("-")
        for method in METHODS:
            log = np.load(path.with_name(f"{path.stem.removesuffix('peer')}{method}.npz"))
            given, wrong = log["given"], log["given"] != log["true"]
            case = {"data": data, "noise": " ".join(noise), "seed": int(seed), "method": method}
            case |= {"n": len(given), "wrong": int(wrong.sum()), "fitted": float(log["fitted"])}
            found = {"ausam": ours(audited(log["margin"], given), wrong), "cleanlab": cleanlabs(given, p, wrong)}
            results.append(case | found)
    return results


def clean(folder: str) -> list[dict[str, Any]]:
    """The random problems of ``trainings.py``, whose labels are all right."""
    results = []
    for path in sorted(Path(folder).glob("clean-*.npz")):
        log = np.load(path)
        case = {
            "kind": str(log["kind"]),
            "seed": int(path.stem[6:]),
            "n": len(log["given"]),
            "fitted": float(log["fitted"]),
        }
        results.append(case | {"flagged": len(audited(log["margin"], log["given"]))})
    return results


# -- tables ------------------------------------------------------------------------------------------------------------


def table(part: str) -> str:
    """A table of the documentation."""
    results = json.loads((HERE / f"{part}.json").read_text())
    if part == "clean":
        return clean_table(results)
    keys = ("data", "share") if part == "predictions" else ("data", "noise", "method")
    lines = [
        "| data | wrong | AUC | cleanlab | average precision | cleanlab | precision at k | cleanlab | flagged | wrong "
        "among them | F1 | cleanlab: flagged | wrong among them | F1 |",
        f"|---|{'---:|' * 13}",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for case in results:
        groups.setdefault(tuple(case[key] for key in keys), []).append(case)
    for cases in groups.values():
        wrong = sum(case["wrong"] for case in cases) / sum(case["n"] for case in cases)
        rank = [f"{mean(cases, who, m)}" for m in ("auc", "average_precision", "precision_at_k") for who in BOTH]
        flags = [text for who in BOTH for text in flagged(cases, who)]
        lines.append(f"| {name_of(cases[0])} | {100 * wrong:.1f} % | {' | '.join(rank)} | {' | '.join(flags)} |")
    return "\n".join(lines)


BOTH = ("ausam", "cleanlab")


def name_of(case: dict[str, Any]) -> str:
    """The data, and for our own trainings what the labels are flipped to and the method."""
    kinds = {"any": "to any class", "next": "to the next class", "human": "by people"}
    more = [kinds[case["noise"].split()[0]], case["method"]] if "method" in case else []
    return ", ".join([case["data"], *more])


def mean(cases: list[dict[str, Any]], who: str, measure: str) -> str:
    """The mean of a measure; a dash where it is not defined."""
    values = [case[who][measure] for case in cases if measure in case[who]]
    return f"{np.mean(values):.3f}" if values else "–"


def flagged(cases: list[dict[str, Any]], who: str) -> tuple[str, str, str]:
    """Labels flagged in a case, the part of them that is wrong, and F1."""
    count, hits = (sum(case[who][name] for case in cases) for name in ("flagged", "hits"))
    right = f"{hits / count:.2f}" if count else "–"
    return f"{count / len(cases):,.0f}", right, mean(cases, who, "f1") if cases[0]["wrong"] else "–"


def clean_table(results: list[dict[str, Any]]) -> str:
    """By kind of problem: how many problems have flags."""
    lines = [
        "| problems | count | with a flag | with more than 0.5 % flagged | of all samples |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind in (*dict.fromkeys(case["kind"] for case in results), "all"):
        cases = [case for case in results if kind in (case["kind"], "all")]
        some, many = sum(c["flagged"] > 0 for c in cases), sum(c["flagged"] > 0.005 * c["n"] for c in cases)
        share = sum(c["flagged"] for c in cases) / sum(c["n"] for c in cases)
        lines.append(f"| {kind} | {len(cases)} | {some} | {many} | {100 * share:.2f} % |")
    return "\n".join(lines)


def main() -> None:
    """Run a part, and print its table."""
    torch.set_num_threads(1)
    part, *arguments = sys.argv[1:]
    results = {"predictions": predictions, "trainings": trainings, "clean": clean}[part](*arguments)
    lines = ",\n".join(json.dumps(case) for case in results)
    (HERE / f"{part}.json").write_text(f"[\n{lines}\n]\n")
    print(table(part))


if __name__ == "__main__":
    main()
