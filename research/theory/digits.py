"""The training runs on which the lemma and the theorems are measured: scikit-learn's digits.

1,024 digits of 8x8, 20 % of them with a wrong label or all right ("clean"), and a network of two hidden layers without
BatchNorm or dropout, so that training and measuring see the same function. About four seconds a run on one core.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, Full, Indexed, Plain, Random, Scores, SelectiveBatchSampler, SharpnessAware, TopLoss

RESULTS = Path(__file__).with_name("digits.json")
BATCH, RHO, LR, NOISE = 64, 0.2, 0.1, 0.2


@dataclass(frozen=True)
class Settings:
    """How much is trained and measured."""

    samples: int = 1024
    epochs: int = 60
    seeds: tuple[int, ...] = (0, 1, 2)
    watched: tuple[int, ...] = (0, 1, 2, 4, 8, 15, 22, 30, 40, 50, 60)  # epochs that are over when it is measured
    steps: int = 1000  # of theorem 3's problems


SMOKE = Settings(samples=256, epochs=3, seeds=(0,), watched=(0, 3), steps=20)


@dataclass(frozen=True, eq=False)
class Digits:
    """The data of one seed: which labels are wrong, and which digits are for testing, depend on it."""

    x: Tensor
    y: Tensor
    wrong: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls, seed: int, n: int, noise: float = NOISE) -> Digits:
        x, y = load_digits(return_X_y=True)
        rng = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(x), generator=rng)
        x, y = torch.tensor(x / 16.0, dtype=torch.float32)[order], torch.tensor(y)[order]
        wrong = torch.zeros(n, dtype=torch.bool)
        wrong[torch.randperm(n, generator=rng)[: int(noise * n)]] = True
        labels = y[:n].clone()
        labels[wrong] = (labels[wrong] + torch.randint(1, 10, (int(wrong.sum()),), generator=rng)) % 10
        return cls(x[:n], labels, wrong, x[n:], y[n:])


POLICIES = {  # and what each ranks by
    "AUSampling": (AUSampling(alpha=0.5, ramp=10), "dlp"),
    "unbiased": (AUSampling(alpha=0.5, ramp=10, unbiased=True), "dlp"),
    "Random": (Random(alpha=0.5), "loss"),
    "TopLoss": (TopLoss(alpha=0.5), "loss"),
}


@dataclass(eq=False)
class Run:
    """A training run: the model, and what was written down on the way."""

    model: nn.Module
    data: Digits
    states: list[dict[str, Tensor]]  # before epoch 1, 2, ..., and at the end
    dlp: np.ndarray  # epochs x samples, NaN where not visited
    loss: np.ndarray
    visits: Tensor  # how often each sample was used
    largest_gradient: float
    rates: list[float]

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.model(x), y, reduction="none")

    def at(self, epoch: int) -> None:
        self.model.load_state_dict(self.states[epoch])

    def batches(self, count: int | None = None) -> list[tuple[Tensor, Tensor]]:
        """The first so many mini-batches in the order of the data, which is random; None for all."""
        pairs = zip(self.data.x.split(BATCH), self.data.y.split(BATCH), strict=True)
        return list(pairs)[:count]

    def scores(self, values: np.ndarray, epoch: int, decay: float) -> Scores:
        """The table that a sampler would have after so many epochs."""
        table = Scores(len(self.data.x), decay)
        for row in values[:epoch]:
            table.record(torch.arange(len(row)), torch.from_numpy(row))
        return table

    def policies(self, epoch: int) -> Iterator[tuple[str, AUSampling | Random | TopLoss, Scores]]:
        """Every policy with the scores that it would have by now."""
        for name, (policy, signal) in POLICIES.items():
            yield name, policy, self.scores(getattr(self, signal), epoch, policy.decay)

    def accuracy(self) -> float:
        with torch.no_grad():
            return float((self.model(self.data.test_x).argmax(1) == self.data.test_y).double().mean())


def train(
    seed: int, method, policy, settings: Settings, *, momentum: float = 0.9, rate=None, noise: float = NOISE
) -> Run:
    """The loop of the README; ``rate`` is the learning rate of each epoch from 1 on, by default a cosine."""
    n, epochs = settings.samples, settings.epochs
    data = Digits.load(seed, n, noise)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    rate = rate or (lambda t: LR * (1 + np.cos(np.pi * (t - 1) / epochs)) / 2)
    indexed = Indexed(TensorDataset(data.x, data.y))
    sampler = SelectiveBatchSampler(indexed, BATCH, policy, seed=seed)
    loader = DataLoader(indexed, batch_sampler=sampler)
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    opt = SharpnessAware(base, method, model)
    unvisited = np.full((epochs, n), np.nan)
    run = Run(model, data, [_copy(model)], unvisited, unvisited.copy(), torch.zeros(n, dtype=torch.int64), 0.0, [])
    for epoch in range(epochs):
        base.param_groups[0]["lr"] = float(rate(epoch + 1))
        run.rates.append(float(rate(epoch + 1)))
        for x, y, index in loader:
            feedback = opt.backward(run.losses, x, y, index=index, weight=sampler.weight(index))
            sampler.update(feedback)
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            run.largest_gradient = max(run.largest_gradient, float(gradient.norm()))
            opt.step()
            opt.zero_grad()
            run.dlp[epoch, index] = feedback.sharpness.numpy()
            run.loss[epoch, index] = feedback.loss.numpy()
            run.visits[index] += 1
        run.states.append(_copy(model))
    return run


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@functools.cache
def trained(settings: Settings) -> dict[str, Run]:
    """Four methods on noisy labels, by name and seed."""
    pairs = {
        "SGD": (Plain(), Full()),
        "SAM": (SAM(rho=RHO), Full()),
        "AUSAM-0.5": (SAM(rho=RHO), AUSampling(alpha=0.5, ramp=10)),
        "SAM+Random": (SAM(rho=RHO), Random(alpha=0.5)),
    }
    return {f"{name} {seed}": train(seed, *pair, settings) for name, pair in pairs.items() for seed in settings.seeds}


@functools.cache
def sharpness_aware(settings: Settings) -> dict[str, Run]:
    """The runs that know DLP: SAM, also on clean labels, and AUSAM."""
    clean = {f"SAM clean {s}": train(s, SAM(rho=RHO), Full(), settings, noise=0.0) for s in settings.seeds}
    return {name: run for name, run in trained(settings).items() if name.startswith(("SAM ", "AUSAM"))} | clean


def main(part: str, measure: Callable[[Settings], dict]) -> None:
    """Measure one part and write it into digits.json; with --smoke, tiny sizes and nothing is written."""
    parser = argparse.ArgumentParser(description=f"Measure {part} on digits.")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes; nothing is written")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    result = rounded(measure(SMOKE if smoke else Settings()))
    if smoke:
        print(json.dumps(result)[:400])
        return
    RESULTS.write_text(json.dumps(json.loads(RESULTS.read_text()) | {part: result | conditions()}, indent=1) + "\n")


def conditions() -> dict:
    """The versions that a part was measured with; the rest is in this file."""
    commit, changed = (
        subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=RESULTS.parent).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "../../src", "."])
    )
    return {
        "conditions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "sklearn": sklearn.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "commit": commit + ("+" if changed else ""),
        }
    }


def rounded(value):
    """Numbers with six digits: the file is for reading."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value
