"""Who finds the wrong labels? ``ausam.audit`` beside cleanlab, and how often clean data are flagged.

Claim: the ranking is level with cleanlab's best or above it, at least 80 % of the flagged labels are wrong wherever any
are flagged, and of clean data at most 0.5 % are flagged.

    python research/label_errors/scorecard.py predictions FOLDER    # stored predictions, see below
    python research/label_errors/scorecard.py digits                # trainings of small networks on the digits
    python research/label_errors/scorecard.py clean                 # 200 random clean problems

FOLDER holds a file per data set: ``probabilities`` (n, classes) of networks that have not seen the sample, ``given``
and ``true`` labels, as npz. The repository cleanlab/label-error-detection-benchmarks has such predictions of CIFAR-10.
Lower shares of wrong labels are made by leaving wrong ones out. ``predictions`` and ``digits`` need cleanlab 2.9, which
gets out-of-sample predictions: of the digits by 5-fold cross validation, five more trainings, where the audit reads the
one training on all. Each part writes ``PART.json`` beside this file. One thread.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torch.nn.functional import cross_entropy

from ausam import SAM, Plain, SharpnessAware
from ausam.audit import Audit, LabelErrors, find_label_errors

HERE = Path(__file__).parent
SHARES = (0.002, 0.005, 0.01, 0.02, 0.05)
NOISE = [("none", 0.0), *(("any", s) for s in (0.005, 0.01, 0.02, 0.05, 0.2, 0.4)), *(("next", s) for s in (0.05, 0.2))]
SEEDS, FOLDS = 3, 5


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


def predictions(folder: str) -> list[dict[str, Any]]:
    """Stored predictions of other people's networks."""
    results = []
    for path in sorted(Path(folder).glob("*.npz")):
        data = np.load(path)
        p = np.maximum(data["probabilities"].astype(np.float64), 1e-7)
        p /= p.sum(1, keepdims=True)
        given, true = data["given"].astype(np.int64), data["true"].astype(np.int64)
        right, bad = np.flatnonzero(given == true), np.random.default_rng(0).permutation(np.flatnonzero(given != true))
        for share in (0.0, *SHARES, len(bad) / len(given)):
            index = np.sort(np.r_[right, bad[: round(share * len(right) / (1 - share))]])
            labels, q, wrong = given[index], p[index], (given != true)[index]
            errors = find_label_errors(labels, probabilities=q)
            case = {"data": path.stem, "share": share, "n": len(index), "wrong": int(wrong.sum())}
            results.append(case | {"ausam": ours(errors, wrong), "cleanlab": cleanlabs(labels, q, wrong)})
    return results


# -- trainings ---------------------------------------------------------------------------------------------------------


def train(
    x: torch.Tensor, labels: np.ndarray, classes: int, *, hidden: int, epochs: int, lr: float, batch: int, rho: float
) -> tuple[Audit, nn.Module, float]:
    """A network with one hidden layer or none, its audit, and the part of the labels that it fits."""
    wide = [nn.Linear(x.shape[1], hidden), nn.ReLU()] if hidden else []
    model = nn.Sequential(*wide, nn.Linear(hidden or x.shape[1], classes))
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    opt = SharpnessAware(base, SAM(rho=rho) if rho else Plain(), model)
    audit, y = Audit(len(x), labels, classes=classes), torch.from_numpy(labels)

    def losses(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = model(x)
        return cross_entropy(z, y, reduction="none"), z

    for _ in range(epochs):
        for i in torch.randperm(len(x)).split(batch):
            audit.update(opt.backward(losses, x[i], y[i], index=i))
            opt.step()
            opt.zero_grad()
    with torch.no_grad():
        return audit, model, float((model(x).argmax(1) == y).float().mean())


def standardised(x: np.ndarray) -> torch.Tensor:
    """The features with mean 0 and variance 1."""
    return torch.from_numpy((x - x.mean(0)) / (x.std(0) + 1e-6)).float()


def digits() -> list[dict[str, Any]]:
    """1,000 digits, labels flipped to any other class or to the next one; SGD memorises them, SAM does not."""
    images, true = load_digits(return_X_y=True)
    x, results = standardised(images / 16), []
    for kind, share in NOISE:
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            index = rng.permutation(len(x))[:1000]
            wrong = np.arange(1000) < round(share * 1000)  # of samples in random order
            shift = np.ones(1000, int) if kind == "next" else rng.integers(1, 10, 1000)
            labels = np.where(wrong, (true[index] + shift) % 10, true[index])
            how = {"hidden": 128, "epochs": 30, "lr": 0.05, "batch": 64}
            p = out_of_sample(x[index], labels, seed, **how)
            peer = cleanlabs(labels, p, wrong)
            for method, rho in (("SGD", 0.0), ("SAM", 0.2)):
                torch.manual_seed(seed)
                audit, _, fitted = train(x[index], labels, 10, rho=rho, **how)
                case = {"noise": kind, "share": share, "seed": seed, "method": method, "fitted": fitted}
                case |= {"n": 1000, "wrong": int(wrong.sum())}
                results.append(case | {"ausam": ours(audit.label_errors(), wrong), "cleanlab": peer})
    return results


def out_of_sample(x: torch.Tensor, labels: np.ndarray, seed: int, **how: Any) -> np.ndarray:
    """Predictions by cross validation of the same network, trained with SGD."""
    torch.manual_seed(seed)
    p, fold = np.zeros((len(x), 10)), np.arange(len(x)) % FOLDS
    for k in range(FOLDS):
        _, model, _ = train(x[fold != k], labels[fold != k], 10, rho=0.0, **how)
        with torch.no_grad():
            p[fold == k] = model(x[fold == k]).softmax(1).numpy()
    return np.maximum(p, 1e-7) / np.maximum(p, 1e-7).sum(1, keepdims=True)


def clean() -> list[dict[str, Any]]:
    """Random problems whose labels are all right: some easy, some that overlap, some that no such network can learn."""
    return [clean_problem(seed) for seed in range(200)]


def clean_problem(seed: int) -> dict[str, Any]:
    """One of them."""
    rng = np.random.default_rng(seed)
    kind = ("digits", "blobs", "overlap", "linear", "teacher", "rings")[seed % 6]
    n, classes, d = int(rng.integers(200, 1500)), int(rng.integers(2, 11)), int(rng.integers(2, 30))
    x = rng.normal(size=(n, d))
    if kind == "digits":
        images, digit = load_digits(return_X_y=True)
        index = rng.permutation(len(images))[:n]
        x, y, classes = images[index], digit[index], 10
    elif kind in ("blobs", "overlap"):
        y = rng.integers(0, classes, n)
        x += (4 if kind == "blobs" else 1.2) * rng.normal(size=(classes, d))[y]
    elif kind == "rings":
        classes, y = 3, rng.integers(0, 3, n)
        radius, angle = 1 + y + rng.normal(0, 0.3, n), rng.uniform(0, 2 * np.pi, n)
        x = np.c_[radius * np.cos(angle), radius * np.sin(angle)]
    else:
        features = x if kind == "linear" else np.tanh(x @ rng.normal(size=(d, 16)))
        y = (features @ rng.normal(size=(features.shape[1], classes))).argmax(1)
    how = {
        "hidden": int(rng.choice([0, 32, 128])),
        "epochs": int(rng.integers(5, 40)),
        "batch": int(rng.choice([16, 64])),
    }
    how |= {"lr": float(rng.choice([0.01, 0.03, 0.1])), "rho": float(rng.choice([0.0, 0.1]))}
    torch.manual_seed(seed)
    audit, _, fitted = train(standardised(x), y.astype(np.int64), classes, **how)
    errors = audit.label_errors()
    return {"kind": kind, "n": n, "classes": classes, **how, "fitted": fitted, "flagged": len(errors)}


# -- tables ------------------------------------------------------------------------------------------------------------


def table(part: str) -> str:
    """A table of the documentation."""
    results = json.loads((HERE / f"{part}.json").read_text())
    if part == "clean":
        return clean_table(results)
    keys = ("data",) if part == "predictions" else ("noise", "method")
    lines = [
        "| data | wrong | AUC | cleanlab | average precision | cleanlab | precision at k | cleanlab | flagged | wrong "
        "among them | F1 | cleanlab: flagged | wrong among them | F1 |",
        f"|---|{'---:|' * 13}",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for case in results:
        groups.setdefault((*(case[key] for key in keys), case["share"]), []).append(case)
    for (*name, share), cases in groups.items():
        rank = [f"{mean(cases, who, m)}" for m in ("auc", "average_precision", "precision_at_k") for who in BOTH]
        flags = [text for who in BOTH for text in flagged(cases, who)]
        lines.append(f"| {', '.join(name)} | {100 * share:.1f} % | {' | '.join(rank)} | {' | '.join(flags)} |")
    return "\n".join(lines)


BOTH = ("ausam", "cleanlab")


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
    results = {"predictions": predictions, "digits": digits, "clean": clean}[part](*arguments)
    lines = ",\n".join(json.dumps(case) for case in results)
    (HERE / f"{part}.json").write_text(f"[\n{lines}\n]\n")
    print(table(part))


if __name__ == "__main__":
    main()
