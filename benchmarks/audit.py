"""The audit beside cleanlab and the area under the margin: who finds labels that were flipped on purpose?

    python benchmarks/audit.py digits --seeds 3 --out docs/results/audit.jsonl
    python benchmarks/audit.py --table docs/results/audit.jsonl

cleanlab (confident learning, Northcutt et al. 2021) gets out-of-sample predictions of the same network by 5-fold cross
validation: five more trainings. The audit and the area under the margin (Pleiss et al. 2020) read one training. Needs
cleanlab and, for fashion-mnist and cifar10, the data in ``data``. Every seed draws weights, order and wrong labels.
Each finished case is appended to the file; a second call resumes. ``--keep FILE`` does not run cleanlab, but takes its
figures from the same cases of an earlier file: a training depends on nothing but its seed. On CIFAR-10 three cases are
run, because a network that fits it takes minutes.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import wrong_labels
from torch.nn import functional

from ausam import SAM, SharpnessAware
from ausam.audit import Audit
from ausam_lab.networks.build import build

NOISE = [("clean", 0.0), *((kind, rate) for kind in ("symmetric", "pair") for rate in (0.05, 0.1, 0.2, 0.4))]
# images for training, epochs, batch size, learning rate, rho, network
SETTINGS = {
    "digits": (1_000, 30, 64, 0.1, 0.4, "resnet-tiny"),
    "fashion-mnist": (4_000, 20, 64, 0.05, 0.1, "resnet-tiny"),
    "cifar10": (2_000, 40, 64, 0.1, 0.1, "resnet-small"),
}
FEW = [("clean", 0.0), ("symmetric", 0.2), ("pair", 0.2)]  # of CIFAR-10
CLASSES = 10


def images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All training images, normalised, and their labels; Fashion-MNIST at half its size."""
    if name == "digits":
        from ausam_lab.data.sources import digits as load
    elif name == "fashion-mnist":
        from ausam_lab.data.sources import fashion_mnist as load
    else:
        from ausam_lab.data.sources import cifar10 as load
    data = load("data")
    x = data.train_x.float()
    x = (x - x.mean()) / x.std()
    return (functional.avg_pool2d(x, 2) if name == "fashion-mnist" else x), data.train_y


def flip(y: np.ndarray, kind: str, rate: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share is wrong: any other class (symmetric), or the next one (pair)."""
    wrong = np.zeros(len(y), bool)
    wrong[rng.permutation(len(y))[: round(rate * len(y))]] = True
    shift = np.ones(len(y), int) if kind == "pair" else rng.integers(1, CLASSES, len(y))
    return np.where(wrong, (y + shift) % CLASSES, y), wrong


def train(x: torch.Tensor, y: torch.Tensor, name: str, seed: int) -> tuple[torch.nn.Module, Audit, np.ndarray, int]:
    """A training with SAM: the network, its audit, the mean margin of each sample, and the samples that it cost."""
    _, epochs, batch, lr, rho, network = SETTINGS[name]
    model = build(network, CLASSES, x.shape[1], seed).train()
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    opt = SharpnessAware(base, SAM(rho), model, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, epochs)
    audit, margin = Audit(len(x), y), np.zeros(len(x))
    rng = torch.Generator().manual_seed(seed)

    def losses(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = model(x)
        return functional.cross_entropy(z, y, reduction="none"), z

    for _ in range(epochs):
        for i in torch.randperm(len(x), generator=rng).split(batch):
            if len(i) > 1:
                feedback = opt.backward(losses, x[i], y[i], index=i)
                opt.step()
                opt.zero_grad()
                audit.update(feedback)
                z = feedback.outputs
                given = z.gather(1, y[i, None])[:, 0]
                other = z.scatter(1, y[i, None], -math.inf).amax(1)
                margin[i.numpy()] += (given - other).numpy()
        schedule.step()
    return model.eval(), audit, margin / epochs, opt.samples_forward + opt.samples_backward


def out_of_sample(x: torch.Tensor, y: torch.Tensor, name: str, seed: int) -> tuple[np.ndarray, int]:
    """Predicted probabilities of each sample by a network that has not seen it, and the samples that they cost."""
    p, cost = np.zeros((len(x), CLASSES)), 0
    order = np.random.default_rng(seed).permutation(len(x))
    for part in np.array_split(order, 5):
        rest = np.setdiff1d(order, part)
        model, _, _, passed = train(x[rest], y[rest], name, seed)
        cost += passed
        with torch.no_grad():
            p[part] = model(x[part]).softmax(1).numpy()
    return p, cost


def decision(suspected: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """The share that is suspected; of these, the share that is wrong; and of the wrong, the share that is suspected."""
    shares = {"rate": float(suspected.mean())}
    if wrong.any():
        shares["found"] = float(suspected[wrong].mean())
        if suspected.any():
            shares["hits"] = float(wrong[suspected].mean())
    return shares


def cleanlab(x: torch.Tensor, given: np.ndarray, wrong: np.ndarray, name: str, seed: int) -> dict[str, float]:
    """What cleanlab finds, and its cost."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    p, cost = out_of_sample(x, torch.from_numpy(given), name, seed)
    issues, quality = find_label_issues(given, p), get_label_quality_scores(given, p)
    return {"cost": cost, **decision(issues, wrong), **wrong_labels.detection(-quality, wrong)}


def case(name: str, kind: str, rate: float, seed: int, kept: dict[str, float] | None) -> dict[str, object]:
    """One case: flip, train, ask all three; ``kept`` are figures of cleanlab, which is then not asked."""
    x, y = images(name)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(x))[: SETTINGS[name][0]]
    x, clean = x[chosen], y[chosen].numpy()
    given, wrong = flip(clean, kind, rate, rng)
    labels = torch.from_numpy(given)
    _, audit, margin, cost = train(x, labels, name, seed)
    suspects = audit.suspects()
    columns = audit.columns()
    suspected = np.isin(np.arange(len(x)), suspects.index)
    right = (clean[suspects.index] == suspects.suggested)[wrong[suspects.index]]
    found = {
        "audit": {
            "interval": suspects.interval,
            "suggested right": float(right.mean()) if len(right) else None,
            "cost": cost,
            **decision(suspected, wrong),
            **wrong_labels.detection(suspects.loss, wrong),
        },
        "recent loss": {"cost": cost, **wrong_labels.detection(columns["recent"], wrong)},
        "mean loss": {"cost": cost, **wrong_labels.detection(columns["mean"], wrong)},
        "margin": {"cost": cost, **wrong_labels.detection(-margin, wrong)},
        "cleanlab": cleanlab(x, given, wrong, name, seed) if kept is None else kept,
    }
    training = {"verdict": audit.verdict().kind, "median loss": float(np.median(columns["last"]))}
    return {"data": name, "noise": kind, "share": rate, "seed": seed, "samples": len(x), **training, "found": found}


def table(path: Path) -> str:
    """Means over seeds as Markdown."""
    cases = wrong_labels.read(path)
    lines = [
        "| data, wrong labels | seeds | AUC: audit | cleanlab | margin | precision at k: audit | cleanlab | margin | "
        "suspected: audit | cleanlab | wrong among the audit's | found by the audit | suggested class right |",
        "|---|" + "---:|" * 12,
    ]
    for key in sorted({(c["data"], c["noise"], c["share"]) for c in cases}, key=_place):
        rows = [c["found"] for c in cases if (c["data"], c["noise"], c["share"]) == key]

        def mean(who: str, what: str, digits: int, rows: list[dict[str, dict[str, float]]] = rows) -> str:
            values = [r[who].get(what) for r in rows]
            known = [v for v in values if v is not None]
            return f"{np.mean(known):.{digits}f}" if known else "–"

        who = ("audit", "cleanlab", "margin")
        name = f"{key[0]}, clean" if key[1] == "clean" else f"{key[0]}, {100 * key[2]:g} % {key[1]}"
        cells = [
            name,
            str(len(rows)),
            *(mean(w, "auc", 3) for w in who),
            *(mean(w, "precision", 2) for w in who),
            *(mean(w, "rate", 3) for w in who[:2]),
            mean("audit", "hits", 2),
            mean("audit", "found", 2),
            mean("audit", "suggested right", 2),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _place(key: tuple[str, str, float]) -> tuple[int, int, float]:
    return list(SETTINGS).index(key[0]), ("clean", "symmetric", "pair").index(key[1]), key[2]


def _key(case: dict[str, Any]) -> tuple[str, str, float, int]:
    return case["data"], case["noise"], case["share"], case["seed"]


def main() -> None:
    """Run the cases of a data set that are missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="?", choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="an earlier file with cleanlab's figures, which is then not run")
    parser.add_argument("--out", type=Path, default=Path("docs/results/audit.jsonl"))
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return
    torch.set_num_threads(1)
    done = set(map(_key, wrong_labels.read(args.out)))
    kept = {_key(c): c["found"]["cleanlab"] for c in wrong_labels.read(args.keep)} if args.keep else {}
    for seed in range(args.seeds):
        for kind, rate in FEW if args.data == "cifar10" else NOISE:
            if (args.data, kind, rate, seed) in done:
                continue
            began = time.perf_counter()
            known = kept.get((args.data, kind, rate, seed), {}) if args.keep else None
            result = case(args.data, kind, rate, seed, known)
            wrong_labels.append(args.out, result)
            print(f"{args.data} {kind} {rate:g} seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
