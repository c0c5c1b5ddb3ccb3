"""Which rule should leave wrong labels out? Rules beside ``Trusted``, each with its random twin, on validation samples.

    python benchmarks/trust.py --out docs/results/trust.jsonl
    python benchmarks/trust.py --table docs/results/trust.jsonl

800 of the embedded training digits are trained on and the other 200, with right labels, judge; the test digits are not
used. Each seed draws the split, the wrong labels, the weights and the order. Noise is symmetric (any other class), pair
(the next class), or of half the classes (classes 0 to 4 at twice the rate, the others not at all); the long tail keeps
3 % of the last class. Each finished run is appended to the file; a second call resumes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import wrong_labels
from scipy.stats import t
from torch import Tensor
from torch.nn import functional

from ausam import SAM, AUSampling, Plain, Policy, Random, Scores, SelectiveBatchSampler, SharpnessAware, Trusted
from ausam.audit.groups import two_groups
from ausam.common.trust import EVEN
from ausam.policies.draws import Choice, kept_count, weighted_sample
from ausam_lab.data.sources import digits
from ausam_lab.networks.build import build

EPOCHS, BATCH, LR, RHO, CLASSES, TRAIN = 30, 64, 0.1, 0.4, 10, 800
PROBLEMS = (
    ("clean", 0.0),
    *(("symmetric", rate) for rate in (0.1, 0.2, 0.4)),
    *(("pair", rate) for rate in (0.2, 0.4)),
    ("half", 0.2),
    ("tail", 0.0),
)
REFERENCE_EPOCHS = 10  # of the small reference of the reducible loss, trained on one half to judge the other


@dataclass(frozen=True)
class Threshold(Trusted):
    """No groups: whoever is worse than guessing is suspected, the others are drawn alike."""

    def _fitted(self, loss: np.ndarray) -> tuple[float, ...]:  # noqa: ARG002
        return self.guessing, 1.0

    def odds(self, loss: Tensor, index: Tensor, fitted: tuple[float, ...]) -> Tensor:  # noqa: ARG002
        return torch.where(loss > fitted[0], self.doubt, 1.0)


@dataclass(frozen=True)
class Suspicion(Trusted):
    """Trusted's suspects, the others drawn alike."""

    def odds(self, loss: Tensor, index: Tensor, fitted: tuple[float, ...]) -> Tensor:
        return torch.where(super().odds(loss, index, fitted) == self.doubt, self.doubt, 1.0)


@dataclass(frozen=True)
class Balanced(Trusted):
    """Trusted, with odds divided by the size of the class."""

    def odds(self, loss: Tensor, index: Tensor, fitted: tuple[float, ...]) -> Tensor:
        share = self.labels.bincount() / len(self.labels) * CLASSES
        return super().odds(loss, index, fitted) / share[self.labels[index]]


class AuditGroups(Trusted):
    """Trusted, with the groups of the audit: right labels have a Weibull distribution."""

    def _limit(self, loss: np.ndarray) -> float:
        groups = two_groups(loss)
        apart = groups is not None and groups.are_apart(max(EVEN, self.guessing / 2))
        return max(EVEN, groups.crossing) if apart else math.inf


class EasyFirst(Trusted):
    """Trusted; before its first decision, samples above the median of their class are drawn less often."""

    def fit(self, scores: Scores, epoch: int) -> tuple[float, ...]:
        loss = scores.mean
        if self.decides(epoch) or not scores.known:
            return super().fit(scores, epoch)
        return tuple(float(loss[self.labels == c].nanmedian()) for c in range(CLASSES))

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: torch.Generator) -> Choice:
        if self.decides(epoch) or not scores.fit:
            return super().select(scores, epoch, candidates, rng)
        above = scores.of(candidates) > torch.tensor(scores.fit)[self.labels[candidates]]
        return weighted_sample(torch.where(above, 0.3, 1.0), kept_count(self.alpha, candidates.shape[1]), rng)


class WholeFirst(Trusted):
    """Trusted, after a first epoch that uses every sample."""

    full_epochs = 1


class TrustedAU(Trusted):
    """Trusted's suspects, the others drawn by the paper's score. It keeps the paper's score beside the loss."""

    def odds(self, loss: Tensor, index: Tensor, fitted: tuple[float, ...]) -> Tensor:
        suspected = super().odds(loss, index, fitted) == self.doubt
        sharpness = PAPER_SCORES[0].of(index)
        odds = AUSampling(ramp=0).odds_of(sharpness.masked_fill(suspected, math.nan), 1)
        return (odds / odds.mean()).masked_fill_(suspected, self.doubt)


PAPER_SCORES: list[Scores] = []  # of the training under way


@dataclass(frozen=True)
class SmallLoss(Policy):
    """Co-teaching's schedule: of each mini-batch, the share with the largest losses is left out, then a random part."""

    alpha: float
    rate: float  # of wrong labels, which nobody knows
    ramp: int = 10
    full_epochs = 0

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: torch.Generator) -> Choice:
        """Random among the smallest losses."""
        out = self.rate * min(1.0, epoch / self.ramp)
        loss = scores.of(candidates).nan_to_num(0.0)
        limit = loss.quantile(1 - out, dim=1, keepdim=True)
        return weighted_sample(torch.where(loss > limit, 1e-6, 1.0), kept_count(self.alpha, candidates.shape[1]), rng)


@dataclass(frozen=True)
class Reducible(Policy):
    """RHO-LOSS: the largest loss less that of a reference which has not seen the sample."""

    reference: Any
    alpha: float
    decay = 0.0
    full_epochs = 1

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: torch.Generator) -> Choice:  # noqa: ARG002
        """The largest differences of each mini-batch."""
        gap = scores.of(candidates).nan_to_num(torch.inf) - self.reference[candidates]
        return gap.topk(kept_count(self.alpha, candidates.shape[1]), dim=1).indices, None


@dataclass(frozen=True)
class Row:
    """A rule and its random twin."""

    name: str
    twin: str
    method: Any
    policy: Callable[[Tensor, float, Tensor | None], Any]
    epochs: int = EPOCHS
    few: bool = False  # only on a few problems


def _random(alpha: float) -> Callable[..., Any]:
    return lambda *_: Random(alpha=alpha)


def _of(rule: type[Trusted], alpha: float) -> Callable[..., Any]:
    return lambda labels, *_: rule(labels, alpha=alpha)


SAM_, ASCENT = SAM(RHO), SAM(RHO, ascent=0.5)
ROWS = (
    Row("random half", "", SAM_, _random(0.5)),
    Row("Trusted", "random half", SAM_, _of(Trusted, 0.5)),
    Row("threshold at guessing", "random half", SAM_, _of(Threshold, 0.5)),
    Row("small losses, rate known", "random half", SAM_, lambda _, rate, __: SmallLoss(0.5, rate)),
    Row("suspects only", "random half", SAM_, _of(Suspicion, 0.5)),
    Row("Trusted, paper's odds", "random half", SAM_, _of(TrustedAU, 0.5)),
    Row("Trusted, the audit's groups", "random half", SAM_, _of(AuditGroups, 0.5)),
    Row("Trusted, balanced", "random half", SAM_, _of(Balanced, 0.5)),
    Row("Trusted from a tenth on", "random half", SAM_, lambda labels, *_: Trusted(labels, start=0.1)),
    Row("Trusted, easy halves first", "random half", SAM_, _of(EasyFirst, 0.5)),
    Row("Trusted, whole first epoch", "random half", SAM_, _of(WholeFirst, 0.5)),
    Row("AUSAM-0.5", "random half", SAM_, lambda *_: AUSampling(0.5)),
    Row("AUSAM-0.5, trimmed", "random half", SAM_, lambda *_: AUSampling(0.5, ema=0.5, trim=0.8)),
    Row("reducible loss", "random half", SAM_, lambda _, __, ref: Reducible(ref, 1 / 3)),
    Row("ascent, random two thirds", "", ASCENT, _random(2 / 3), few=True),
    Row("ascent, Trusted two thirds", "ascent, random two thirds", ASCENT, _of(Trusted, 2 / 3), few=True),
    Row("SGD, random half", "", Plain(), _random(0.5), few=True),
    Row("SGD, Trusted half", "SGD, random half", Plain(), _of(Trusted, 0.5), few=True),
    Row("random quarter", "", SAM_, _random(0.25), few=True),
    Row("Trusted quarter", "random quarter", SAM_, _of(Trusted, 0.25), few=True),
    Row("random tenth, 75 epochs", "", SAM_, _random(0.1), epochs=75, few=True),
    Row("Trusted tenth, 75 epochs", "random tenth, 75 epochs", SAM_, _of(Trusted, 0.1), epochs=75, few=True),
)
FEW = (("clean", 0.0), ("symmetric", 0.2), ("pair", 0.2))


def flip(y: np.ndarray, kind: str, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Labels of which a share is wrong."""
    order = rng.permutation(len(y))
    if kind == "half":
        order = order[y[order] < CLASSES // 2]
    wrong = order[: round(rate * len(y))]
    shift = np.ones(len(wrong), int) if kind == "pair" else rng.integers(1, CLASSES, len(wrong))
    y = y.copy()
    y[wrong] = (y[wrong] + shift) % CLASSES
    return y


def problem(kind: str, rate: float, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and given labels, validation images and right labels."""
    data = digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.train_y))
    x = (data.train_x - data.mean[0]) / data.std[0]
    train, held = order[:TRAIN], order[TRAIN:]
    if kind == "tail":
        y = data.train_y.numpy()[train]
        rank = np.array([np.sum(y[:i] == y[i]) for i in range(len(y))])
        kept = rank < np.bincount(y)[y] * 0.03 ** (y / (CLASSES - 1))
        train = train[kept]
    given = flip(data.train_y.numpy()[train], kind, rate, rng)
    return x[train], torch.from_numpy(given), x[held], data.train_y[held]


def fit(x: Tensor, y: Tensor, method: Any, policy: Any, epochs: int, seed: int) -> tuple[torch.nn.Module, int]:
    """A trained network and what it cost, in samples through forward and backward."""
    model = build("resnet-tiny", CLASSES, 1, seed).train()
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    opt = SharpnessAware(base, method, model, seed=seed)
    sampler = SelectiveBatchSampler(len(x), BATCH, policy, epochs=epochs, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, epochs)
    PAPER_SCORES[:] = [Scores(len(x))]
    for _ in range(epochs):
        for batch in sampler:
            i = torch.as_tensor(batch)
            if len(i) < 2:
                continue
            losses = lambda x, y: functional.cross_entropy(model(x), y, reduction="none")  # noqa: E731
            feedback = opt.backward(losses, x[i], y[i], index=i)
            sampler.update(feedback)
            PAPER_SCORES[0].record(i, feedback.sharpness)
            opt.step()
            opt.zero_grad()
        schedule.step()
    return model.eval(), opt.samples_forward + opt.samples_backward


def reference(x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, int]:
    """The loss of each sample by a network that was trained on the other half, and the cost of both."""
    losses, cost = torch.zeros(len(x)), 0
    halves = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).chunk(2)
    for mine, other in (halves, halves[::-1]):
        model, passed = fit(x[other], y[other], Plain(), Random(alpha=1.0), REFERENCE_EPOCHS, seed)
        cost += passed
        with torch.no_grad():
            losses[mine] = functional.cross_entropy(model(x[mine]), y[mine], reduction="none")
    return losses, cost


def run(row: Row, kind: str, rate: float, seed: int) -> dict[str, object]:
    """One training, judged on the validation samples."""
    x, y, held_x, held_y = problem(kind, rate, seed)
    judged, cost = reference(x, y, seed) if row.name == "reducible loss" else (None, 0)
    model, passed = fit(x, y, row.method, row.policy(y, rate, judged), row.epochs, seed)
    with torch.no_grad():
        z = model(held_x)
    return {
        "row": row.name,
        "noise": kind,
        "share": rate,
        "seed": seed,
        "accuracy": 100 * float((z.argmax(1) == held_y).double().mean()),
        "nll": float(functional.cross_entropy(z, held_y)),
        "cost": (cost + passed) / (4 * EPOCHS * len(x)),  # SAM on every sample: 1
    }


def table(path: Path) -> str:
    """The gain of each rule over its random twin, as Markdown: accuracy with its 95 % t interval, and NLL."""
    runs = wrong_labels.read(path)
    of = {(r["row"], r["noise"], r["share"], r["seed"]): r for r in runs}
    seeds = sorted({r["seed"] for r in runs})
    problems = [p for p in PROBLEMS if any((r["noise"], r["share"]) == p for r in runs)]
    names = ["clean" if k == "clean" else "long tail" if k == "tail" else f"{k} {100 * r:g} %" for k, r in problems]
    lines = ["| | cost | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(problems)]
    for row in ROWS:
        cells = []
        for p in problems:
            both = [(of.get((row.name, *p, s)), of.get((row.twin or row.name, *p, s))) for s in seeds]
            pairs = [(mine, twin) for mine, twin in both if mine and twin]
            if not pairs:
                cells.append("")
            elif not row.twin:
                cells.append(
                    f"{np.mean([m['accuracy'] for m, _ in pairs]):.1f}, {np.mean([m['nll'] for m, _ in pairs]):.2f}"
                )
            else:
                d = np.array([m["accuracy"] - w["accuracy"] for m, w in pairs])
                half = t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d)) if len(d) > 1 else math.nan
                nll = np.mean([m["nll"] - w["nll"] for m, w in pairs])
                cells.append(f"{d.mean():+.1f} ± {half:.1f}, {nll:+.2f}".replace("-", "−"))
        cost = [r["cost"] for r in runs if r["row"] == row.name]
        if cost:
            lines.append(f"| {row.name} | {100 * np.mean(cost):.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("docs/results/trust.jsonl"))
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return
    torch.set_num_threads(1)
    done = {(r["row"], r["noise"], r["share"], r["seed"]) for r in wrong_labels.read(args.out)}
    for seed in range(args.seeds):
        for p in PROBLEMS:
            for row in ROWS:
                if (row.name, *p, seed) not in done and (p in FEW or not row.few):
                    wrong_labels.append(args.out, run(row, *p, seed))


if __name__ == "__main__":
    main()
