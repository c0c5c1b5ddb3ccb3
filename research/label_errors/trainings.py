"""Trainings whose losses the audit is scored on: digits, Fashion-MNIST, CIFAR-10, frozen features, clean problems.

    python research/label_errors/trainings.py LOGS digits
    python research/label_errors/trainings.py LOGS features --data FEATURES --human FILE.npz
    python research/label_errors/trainings.py LOGS fashion --data DIR
    python research/label_errors/trainings.py LOGS cifar --data DIR --human FILE.npz
    python research/label_errors/trainings.py LOGS clean

Each training leaves a file in LOGS: ``margin``, what the audit was fed, a row per epoch with NaN for the samples that
the policy left out, ``given`` and ``true`` labels. ``*-peer.npz`` has out-of-sample probabilities for cleanlab, by
5-fold cross validation of the same network under SGD: five more trainings. ``scorecard.py trainings LOGS`` reads them,
so another rule needs no other trainings. A finished file is not repeated. One thread.

FEATURES: of ``research/transfer/features.py``. DIR: of ``ausam train --data-dir``. FILE.npz holds ``given`` and
``true`` labels of the training images of CIFAR-10, from a benchmark of human label errors. Its order differs from that
of the images in a few places, so only runs of fifty equal true labels are used. Seeds draw samples, wrong labels,
weights and order. Nothing was tuned.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ausam import SAM, Full, Plain, SelectiveBatchSampler, SharpnessAware, Trusted
from ausam.common.margin import against_rival
from ausam_lab.data.sources import cifar10, fashion_mnist

METHODS = ("SGD", "SAM", "Trusted")  # Trusted: SAM on a trusted half
FOLDS, BLOCK = 5, 50
NOISES = {  # "human", or the kind of flip and the share of wrong labels
    "digits": ("any 0", "any 0.005", "any 0.01", "any 0.02", "any 0.05", "any 0.2", "any 0.4", "next 0.05", "next 0.2"),
    "features": ("human", "any 0", "any 0.01", "any 0.2"),
    "fashion": ("any 0.05", "any 0", "any 0.01", "any 0.2"),
    "cifar": ("human",),
}
SEEDS = {"digits": 2, "features": 1, "fashion": 1, "cifar": 1}


@dataclass
class Problem:
    """Inputs with given and true labels, and how a network is trained on them."""

    x: Tensor
    given: np.ndarray
    true: np.ndarray
    classes: int
    how: dict[str, Any]


def flipped(true: np.ndarray, noise: str, seed: int) -> np.ndarray:
    """The labels, a share of them flipped to any other class or to the next one."""
    kind, share = noise.split()
    rng = np.random.default_rng(1_000 + seed)
    wrong = rng.permutation(len(true)) < round(float(share) * len(true))
    shift = np.ones(len(true), int) if kind == "next" else rng.integers(1, 10, len(true))
    return np.where(wrong, (true + shift) % 10, true)


def problem(name: str, noise: str, seed: int, data: Path | None, human: Path | None) -> Problem:
    """A data set with wrong labels, with the settings of its training."""
    rng = np.random.default_rng(seed)
    if name == "digits":
        x, true = load_digits(return_X_y=True)
        index = rng.permutation(len(x))[:1_000]
        how = {"hidden": 128, "epochs": 30, "lr": 0.05, "batch": 64, "rho": 0.2}
        return Problem(standardised(x[index]), flipped(true[index], noise, seed), true[index], 10, how)
    if name == "fashion":
        images = fashion_mnist(str(data))
        index = rng.permutation(len(images.train_y))[:6_000]
        true, x = images.train_y.numpy()[index], images.train_x[torch.from_numpy(index)].flatten(1) / 255 - 0.3
        how = {"hidden": 128, "epochs": 30, "lr": 0.05, "batch": 64, "rho": 0.1}
        return Problem(x, flipped(true, noise, seed), true, 10, how)
    assert data is not None
    assert human is not None
    labels = np.load(human)
    if name == "features":
        y = np.load(data / "labels.npy")[:50_000]
        how = {"head": True, "epochs": 20, "lr": 0.05, "batch": 128, "rho": 0.5, "decay": 5e-4}
        size = 8_000
    else:
        images = cifar10(str(data))
        y = images.train_y.numpy()
        how = {"images": True, "epochs": 15, "lr": 0.05, "batch": 64, "rho": 0.1, "decay": 5e-4}
        size = 3_000
    same = (labels["true"] == y).reshape(-1, BLOCK).all(1).repeat(BLOCK)
    index = rng.permutation(np.flatnonzero(same))[:size]
    given = labels["given"][index].astype(np.int64) if noise == "human" else flipped(y[index], noise, seed)
    if name == "features":
        x = standardised(np.load(data / "features.npy", mmap_mode="r")[index].astype(np.float32))
    else:
        x = (images.train_x[torch.from_numpy(index)].float() - 121) / 64
    return Problem(x, given, y[index], 10, how)


def standardised(x: np.ndarray) -> Tensor:
    """The features with mean 0 and variance 1."""
    return torch.from_numpy((x - x.mean(0)) / (x.std(0) + 1e-6)).float()


def network(inputs: int, classes: int, how: dict[str, Any]) -> nn.Module:
    """A head on features, a small convolutional network, or a network with one hidden layer or none."""
    if "head" in how:
        return nn.Sequential(
            nn.Linear(inputs, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, classes)
        )
    if "images" in how:
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            layers += [
                nn.Conv2d(before, after, 3, stride=1 + (before > 3), padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1024, classes))
    if not how["hidden"]:
        return nn.Linear(inputs, classes)
    return nn.Sequential(nn.Linear(inputs, how["hidden"]), nn.ReLU(), nn.Linear(how["hidden"], classes))


def train(p: Problem, method: str, seed: int) -> tuple[np.ndarray, nn.Module]:
    """Train once; returns what an audit is fed, a row per epoch, and the network."""
    how, n = p.how, len(p.x)
    torch.manual_seed(seed)
    model, y = network(p.x[0].numel(), p.classes, how), torch.from_numpy(p.given)
    base = torch.optim.SGD(model.parameters(), lr=how["lr"], momentum=0.9, weight_decay=how.get("decay", 0.0))
    opt = SharpnessAware(base, Plain() if method == "SGD" else SAM(how["rho"]), model)
    policy = Trusted(y, alpha=0.5) if method == "Trusted" else Full()
    sampler = SelectiveBatchSampler(n, batch_size=how["batch"], policy=policy, epochs=how["epochs"], seed=seed)
    log = np.full((how["epochs"], n), np.nan, np.float32)

    def losses(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = model(x)
        return cross_entropy(z, y, reduction="none"), z

    for epoch in range(how["epochs"]):
        for i in sampler:
            index = torch.as_tensor(i)
            feedback = opt.backward(losses, p.x[index], y[index], index=index)
            sampler.update(feedback)
            log[epoch, i] = against_rival(feedback.outputs.detach(), y[index])[0].numpy()
            opt.step()
            opt.zero_grad()
    return log, model.eval()


def probabilities(model: nn.Module, x: Tensor) -> np.ndarray:
    """Of each class, none of them 0."""
    with torch.no_grad():
        p = np.concatenate([model(part).softmax(1).double().numpy() for part in x.split(1_000)])
    return np.maximum(p, 1e-7) / np.maximum(p, 1e-7).sum(1, keepdims=True)


def out_of_sample(p: Problem, seed: int) -> np.ndarray:
    """Predictions by cross validation of the same network, trained with SGD."""
    result, fold = np.zeros((len(p.x), p.classes)), np.arange(len(p.x)) % FOLDS
    for k in range(FOLDS):
        part = Problem(p.x[fold != k], p.given[fold != k], p.true[fold != k], p.classes, p.how)
        _, model = train(part, "SGD", seed)
        result[fold == k] = probabilities(model, p.x[fold == k])
    return result


def run(logs: Path, name: str, data: Path | None, human: Path | None) -> None:
    """Train what is missing, seed by seed."""
    for seed in range(SEEDS[name]):
        for noise in NOISES[name]:
            stem = f"{name}-{noise.replace(' ', '-')}-{seed}"
            todo = [m for m in (*METHODS, "peer") if not (logs / f"{stem}-{m}.npz").exists()]
            if not todo:
                continue
            p = problem(name, noise, seed, data, human)
            for method in todo:
                if method == "peer":
                    found = {"probabilities": out_of_sample(p, seed)}
                else:
                    margin, model = train(p, method, seed)
                    fitted = (probabilities(model, p.x).argmax(1) == p.given).mean()
                    found = {"margin": margin, "given": p.given, "true": p.true, "fitted": fitted}
                save(logs / f"{stem}-{method}.npz", found)


def save(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all."""
    part = path.with_name(f"part-{path.name}")
    np.savez_compressed(part, **found)
    part.replace(path)


def clean(logs: Path, count: int) -> None:
    """Random problems whose labels are all right."""
    for seed in range(count):
        path = logs / f"clean-{seed:03d}.npz"
        if not path.exists():
            kind, p = clean_problem(seed)
            margin, model = train(p, "SAM" if p.how["rho"] else "SGD", seed)
            fitted = (probabilities(model, p.x).argmax(1) == p.given).mean()
            save(path, {"margin": margin, "given": p.given, "true": p.given, "fitted": fitted, "kind": kind})


def clean_problem(seed: int) -> tuple[str, Problem]:
    """One of them: some easy, some with classes that overlap, some that no such network can learn."""
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
    how = {"hidden": int(rng.choice([0, 32, 128])), "epochs": int(rng.integers(5, 40))}
    how |= {"batch": int(rng.choice([16, 64])), "lr": float(rng.choice([0.01, 0.03, 0.1]))}
    y = y.astype(np.int64)
    return kind, Problem(standardised(x), y, y, classes, how | {"rho": float(rng.choice([0.0, 0.1]))})


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    parser.add_argument("part", choices=[*NOISES, "clean"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--human", type=Path)
    parser.add_argument("--count", type=int, default=200, help="clean problems")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.logs.mkdir(parents=True, exist_ok=True)
    if options.part == "clean":
        clean(options.logs, options.count)
    else:
        run(options.logs, options.part, options.data, options.human)


if __name__ == "__main__":
    main()
