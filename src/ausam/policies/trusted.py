"""A part of every mini-batch that leaves out what looks mislabelled and spends less on what is learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.settings import Decay, Epochs, Part, Positive, PositiveCount, Range
from ausam.common.tensors import CPU
from ausam.common.trust import EVEN, groups_apart, threshold, unlearnt_classes
from ausam.policies.base import Policy, class_indices, in_epochs
from ausam.policies.draws import Choice, kept_count, weighted_sample

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores

LEVEL = 0.05  # of the loss of guessing: added to every loss, so that the draw is uniform once all losses are small


@dataclass(frozen=True)
class Suspected:
    """The samples that are not trusted, most suspect first.

    Attributes:
        index: dataset index of each.
        probability: of each, that it belongs to the group that resists learning.
        rate: their share of the samples that have a score: an estimate of the share of wrong labels.
    """

    index: Tensor
    probability: Tensor
    rate: float


@dataclass(frozen=True)
class Trusted(Policy):
    """Draw by the averaged loss among the samples that are trusted, and the others a tenth as often.

    Once per epoch, from ``a_i``, the moving average of the loss at w of each sample, fit two normal distributions to
    ``log a``. If they are clearly apart (Ashman's D > 2, and a better BIC than one), the lower is learnt and the upper
    is not, samples above their crossing t are suspected of a wrong label:

        t = max(log 2, crossing);   s_i = a_i > t, unless most of the class of i is above t
        q_i = min(a_i, log 2);      odds_i = (q_i + c) / (mean of the trusted q + c),  c = 0.05 log C;  doubt if s_i

    and ``max(1, int(alpha n))`` of ``n`` samples are drawn without replacement. Above log 2 the network prefers another
    class: the cap keeps outliers from being favoured, so only learnt samples are demoted. A class that is not learnt
    yet is never suspected, which protects rare classes. A decision holds for one epoch.

    >>> from ausam import SelectiveBatchSampler, Trusted
    >>> sampler = SelectiveBatchSampler(100, batch_size=32, policy=Trusted([0] * 60 + [1] * 40, alpha=0.5), epochs=30)
    >>> [len(batch) for batch in sampler]
    [16, 16, 16, 2]

    Arguments:
        labels: the class of every sample of the dataset, as whole numbers >= 0; None if there is none: then give
            ``guess``, and only losses worse than guessing are suspected.
        alpha: fraction of each mini-batch to keep, in (0, 1].
        start: epochs that draw at random before any decision, because early decisions confirm themselves: a fraction of
            all epochs, below 1, or a whole number of epochs, >= 1. A fraction is rounded to whole epochs, at least one,
            and needs the number of epochs.
        ema: weight of a sample's past in its averaged loss, in [0, 1).
        doubt: odds of a suspected sample, where a trusted one has 1 on average, in (0, 1].
        guess: the loss of guessing, > 0; None: log C, from the labels.
        epochs: number of epochs of the whole training, >= 1; None: what ``SelectiveBatchSampler(epochs=...)`` says.

    Use it where labels may be wrong, or where most samples are soon learnt, with any method. Not for regression: a loss
    there has no natural limit.
    Cost: a fraction alpha of the samples.
    """

    labels: Any = field(repr=False, compare=False)
    alpha: Part = 0.5
    start: Epochs = 0.25
    ema: Decay = 0.5
    doubt: Annotated[float, Range(low=0.0, high=1.0, low_open=True)] = 0.1
    guess: Positive | None = None
    epochs: PositiveCount | None = None
    full_epochs = 0
    reads_scores = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels is not None:
            object.__setattr__(self, "labels", class_indices("Trusted", self.labels))
        elif self.guess is None:
            raise ValueError(
                "Trusted needs the labels, or the loss of guessing: Trusted(labels) with the class of every sample, or "
                "Trusted(None, guess=math.log(number_of_classes))."
            )

    @property
    def decay(self) -> float:  # type: ignore[override]
        """Weight of a sample's past in its score."""
        return self.ema

    @property
    def guessing(self) -> float:
        """The loss of guessing."""
        return self.guess if self.guess is not None else math.log(max(2, int(self.labels.max()) + 1))

    def decides(self, epoch: int) -> bool:
        """Whether the epoch is drawn by the scores."""
        return epoch >= max(1, in_epochs(self, "start", self.epochs))

    def fit(self, scores: Scores, epoch: int) -> tuple[float, ...]:
        """The threshold, the mean of the trusted capped losses, and the classes that are not learnt yet."""
        if self.labels is not None and len(self.labels) != len(scores):
            raise ValueError(
                f"Trusted has {len(self.labels)} labels, but the dataset has {len(scores)} samples. "
                "Pass the label of every sample, in the order of the dataset."
            )
        return self._fitted(scores.mean.double().numpy()) if self.alpha < 1 and self.decides(epoch) else ()

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """A weighted draw without replacement in each mini-batch."""
        odds = torch.ones(candidates.shape, dtype=torch.float32, device=CPU)
        if scores.fit:
            odds = self.odds(scores.of(candidates), candidates, scores.fit)
        return weighted_sample(odds, kept_count(self.alpha, candidates.shape[1]), rng)

    def odds(self, loss: Tensor, index: Tensor, fitted: tuple[float, ...]) -> Tensor:
        """The odds of samples with these averaged losses; ``fitted`` is what :meth:`fit` returned."""
        limit, mean, *unlearnt = fitted
        level = LEVEL * self.guessing
        odds = (loss.clamp_max(EVEN).nan_to_num(mean) + level) / (mean + level)
        suspected = loss > limit
        if unlearnt:
            suspected &= ~torch.isin(self.labels[index], torch.tensor(unlearnt, dtype=torch.int64, device=CPU))
        return odds.masked_fill_(suspected, self.doubt)

    def suspects(self, scores: Scores) -> Suspected:
        """The samples that the scores do not trust now, whatever the epoch."""
        loss = scores.mean.double().numpy()
        groups = groups_apart(loss, self.guessing)
        limit, _, *unlearnt = self._fitted(loss)
        suspected = np.nan_to_num(loss) > limit
        if unlearnt:
            suspected &= ~np.isin(self.labels.numpy(), np.asarray(unlearnt, np.int64))
        index = np.flatnonzero(suspected)
        index = index[np.argsort(-loss[index], kind="stable")]
        probability = np.ones(0) if groups is None else groups.posterior(loss[index])
        known = max(1, int(np.isfinite(loss).sum()))
        return Suspected(torch.from_numpy(index), torch.from_numpy(probability), len(index) / known)

    def _limit(self, loss: np.ndarray[Any, np.dtype[np.float64]]) -> float:
        return threshold(groups_apart(loss, self.guessing))

    def _fitted(self, loss: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, ...]:
        if not np.isfinite(loss).any():
            return math.inf, 1.0
        limit = self._limit(loss)
        trusted = np.isfinite(loss) & ~(loss > limit)
        unlearnt: list[float] = []
        if self.labels is None:
            limit = max(limit, self.guessing)
        elif limit < math.inf:
            labels = self.labels.numpy()
            classes = unlearnt_classes(loss, limit, labels)
            trusted |= np.isfinite(loss) & np.isin(labels, classes)
            unlearnt = [float(c) for c in classes]
        mean = float(np.minimum(loss[trusted], EVEN).mean()) if trusted.any() else EVEN
        return limit, mean, *unlearnt
