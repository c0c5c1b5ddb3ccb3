"""Does ``Trusted`` gain anything over a random subset of the same size?

Claim: on digits with wrong labels it does, with SGD, SAM and ``SAM(ascent=0.5)``; on clean labels, and where right and
wrong labels are not apart, it draws as its random-subset baseline does.

    python research/label_errors/trusted.py digits
    python research/label_errors/trusted.py features --features FEATURES --human FILE.npz
    python research/label_errors/trusted.py table

Digits: 1,000 images with a network of one hidden layer, the other 797 for the test. Features: 5,000 CIFAR-10 images
through a frozen network (``research/transfer/features.py``), a head 1280-256-10, 10,000 test images. FILE.npz holds the
``given`` and ``true`` labels of the training images, from a benchmark of human label errors; its order differs from
that of the images in a few places, so only runs of fifty equal true labels are used. Seeds draw subset, wrong labels,
weights and order. Nothing was tuned. Each cell is a line of ``trusted.jsonl``; a finished one is not repeated. One
thread.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from ausam import SAM, Plain, Random, SelectiveBatchSampler, SharpnessAware, Trusted
from ausam.audit import Audit

RESULTS = Path(__file__).parent / "trusted.jsonl"
ROWS = {"SGD": ("sgd", 0.5), "SAM": ("sam", 0.5), "SAM(ascent=0.5)": ("ascent", 0.67)}
POLICIES = ("Random", "Trusted")
SEEDS = {"digits": 5, "features": 3}
NOISES = {"digits": ("clean", "symmetric 20 %", "symmetric 40 %"), "features": ("human 9 %", "symmetric 20 %")}
SETTINGS = {
    "digits": {"epochs": 30, "batch": 64, "lr": 0.05, "rho": 0.2, "decay": 0.0},
    "features": {"epochs": 20, "batch": 128, "lr": 0.05, "rho": 0.5, "decay": 5e-4},
}
BLOCK = 50


class Data:
    """Samples, true and given labels, and test samples with right labels."""

    def __init__(self, x: Tensor, true: Tensor, given: Tensor, test_x: Tensor, test_y: Tensor) -> None:
        mean, std = x.mean(0), x.std(0).clamp_min(1e-3)
        self.x, self.true, self.given = (x - mean) / std, true, given
        self.test_x, self.test_y = (test_x - mean) / std, test_y


def corrupted(true: Tensor, noise: str, seed: int) -> Tensor:
    """The labels, a part of them replaced by any other class."""
    g = torch.Generator().manual_seed(1_000 + seed)
    share = 0.0 if noise == "clean" else float(noise.split()[1]) / 100
    wrong = torch.rand(len(true), generator=g) < share
    return torch.where(wrong, (true + torch.randint(1, 10, (len(true),), generator=g)) % 10, true)


def digits(noise: str, seed: int) -> Data:
    """1,000 digits and 797 for the test."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images / 16).float(), torch.from_numpy(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    mine, rest = order[:1000], order[1000:]
    return Data(x[mine], y[mine], corrupted(y[mine], noise, seed), x[rest], y[rest])


def features(noise: str, seed: int, folder: Path, human: Path) -> Data:
    """5,000 images of those whose human labels are known, and the test images."""
    x, y = np.load(folder / "features.npy", mmap_mode="r"), torch.from_numpy(np.load(folder / "labels.npy"))
    labels = np.load(human)
    same = (labels["true"] == y[:50_000].numpy()).reshape(-1, BLOCK).all(1).repeat(BLOCK)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(same))[:5_000]
    true = y[order]
    given = torch.from_numpy(labels["given"][order].astype(np.int64)) if "human" in noise else None
    given = corrupted(true, noise, seed) if given is None else given
    train, test = (torch.from_numpy(np.asarray(part)).float() for part in (x[order], x[50_000:]))
    return Data(train, true, given, test, y[50_000:])


def network(data: Data, name: str) -> nn.Module:
    """One hidden layer; the head on features has BatchNorm and dropout."""
    inputs = data.x.shape[1]
    if name == "digits":
        return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 10))
    return nn.Sequential(nn.Linear(inputs, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))


def train(data: Data, name: str, row: str, policy: str, seed: int) -> dict[str, Any]:
    """Train once; the test score, what the policy decided, and what the audit found."""
    how, (method, alpha) = SETTINGS[name], ROWS[row]
    torch.manual_seed(seed)
    model, x, y = network(data, name), data.x, data.given
    epochs, batch = int(how["epochs"]), int(how["batch"])
    chosen = Trusted(y, alpha=alpha) if policy == "Trusted" else Random(alpha)
    sampler = SelectiveBatchSampler(TensorDataset(x, y), batch_size=batch, policy=chosen, epochs=epochs, seed=seed)
    base = torch.optim.SGD(model.parameters(), lr=how["lr"], momentum=0.9, weight_decay=how["decay"])
    estimator = {"sgd": Plain(), "sam": SAM(how["rho"]), "ascent": SAM(how["rho"], ascent=0.5)}[method]
    opt = SharpnessAware(base, estimator, model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * math.ceil(len(x) / batch))
    audit, decided = Audit(len(x), y, classes=10), 0

    def losses(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        z = model(a)
        return cross_entropy(z, b, reduction="none"), z

    for _ in range(epochs):
        for chosen_rows in sampler:
            i = torch.as_tensor(chosen_rows)
            feedback = opt.backward(losses, x[i], y[i], index=i)
            sampler.update(feedback)
            audit.update(feedback)
            opt.step()
            opt.zero_grad()
            schedule.step()
        decided += bool(len(sampler.scores.fit)) if policy == "Trusted" else 0
    model.eval()
    with torch.no_grad():
        z = model(data.test_x)
    wrong, errors = (data.given != data.true).numpy(), audit.label_errors()
    rank = np.empty(len(wrong))
    rank[errors.order] = -np.arange(len(wrong))
    return {
        "accuracy": 100 * float((z.argmax(1) == data.test_y).float().mean()),
        "nll": float(cross_entropy(z, data.test_y)),
        "epochs_decided": decided,
        "wrong": int(wrong.sum()),
        "flagged": len(errors),
        "hits": int(wrong[errors.index].sum()),
        "auc": float(roc_auc_score(wrong, rank)) if wrong.any() else None,
        "least_visits": int(audit.table()["visits"].min()),
    }


def read() -> list[dict[str, Any]]:
    """The finished cells."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


KEY = ("data", "noise", "row", "policy", "seed")


def cells(name: str) -> Iterator[tuple[Any, ...]]:
    """Seed by seed, so that what is finished is balanced."""
    for seed in range(SEEDS[name]):
        for noise in NOISES[name]:
            for row in ROWS:
                for policy in POLICIES:
                    yield name, noise, row, policy, seed


def run(name: str, *where: Path) -> None:
    """Train the cells that are not finished."""
    done = {tuple(cell[k] for k in KEY) for cell in read()}
    data, problem = None, None
    for cell in cells(name):
        _, noise, row, policy, seed = cell
        if cell in done:
            continue
        if problem != (noise, seed):
            data, problem = (digits(noise, seed) if name == "digits" else features(noise, seed, *where)), (noise, seed)
        assert data is not None
        result = dict(zip(KEY, cell, strict=True)) | train(data, name, row, policy, seed)
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")


def table(part: str = "") -> str:  # noqa: ARG001  (there is one)
    """Accuracy of the baseline, and what Trusted adds: paired by seed, 95 % t intervals."""
    lines = [
        "| data | labels | row | seeds | random subset | Trusted, gain | NLL, gain | epochs decided |",
        f"|---|---|---|{'---:|' * 5}",
    ]
    done = read()
    for name, noises in NOISES.items():
        for noise in noises:
            for row, (_, alpha) in ROWS.items():
                pair = [
                    {c["seed"]: c for c in done if [c[k] for k in KEY[:4]] == [name, noise, row, p]} for p in POLICIES
                ]
                seeds = sorted(set(pair[0]) & set(pair[1]))
                if len(seeds) < 2:
                    continue
                base = np.mean([pair[0][s]["accuracy"] for s in seeds])
                gains = [interval([pair[1][s][m] - pair[0][s][m] for s in seeds]) for m in ("accuracy", "nll")]
                decided = np.mean([pair[1][s]["epochs_decided"] for s in seeds])
                lines.append(
                    f"| {name} | {noise} | {row}, {100 * alpha:.0f} % | {len(seeds)} | {base:.2f} | {gains[0]} | "
                    f"{gains[1]} | {decided:.1f} of {SETTINGS[name]['epochs']} |"
                )
    return "\n".join(lines)


def interval(values: list[float]) -> str:
    """The mean with its 95 % t interval."""
    v = np.array(values)
    half = t.ppf(0.975, len(v) - 1) * v.std(ddof=1) / math.sqrt(len(v))
    return f"{v.mean():+.2f} [{v.mean() - half:+.2f}, {v.mean() + half:+.2f}]"


def main() -> None:
    """Run a part, or print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["digits", "features", "table"], nargs="?", default="table")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--human", type=Path)
    parser.add_argument("--smoke", action="store_true", help="train the first cell for one epoch, and write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.smoke:
        SETTINGS["digits"]["epochs"] = 1
        name, noise, row, policy, seed = next(cells("digits"))
        print(train(digits(noise, seed), name, row, policy, seed))
        return
    if arguments.part != "table":
        run(arguments.part, *([arguments.features, arguments.human] if arguments.part == "features" else []))
    print(table())


if __name__ == "__main__":
    main()
