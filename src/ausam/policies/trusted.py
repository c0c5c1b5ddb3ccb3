"""A part of every mini-batch that leaves out what looks mislabelled and spends less on what is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Generator, Tensor

from ausam.common.label_errors import EVEN, VISITS, LabelErrors, flag
from ausam.common.margin import against_rival, class_labels, require_columns, usable
from ausam.common.settings import Decay, Epochs, Part, Positive, PositiveCount, Range
from ausam.common.tensors import CPU
from ausam.policies.base import Policy, in_epochs, require_as_many
from ausam.policies.draws import Choice, kept_count, weighted_sample

if TYPE_CHECKING:
    from ausam.feedback import Feedback
    from ausam.sampler.scores import Scores

LEVEL = 0.05  # of the chance-level loss: added to every loss, so that the draw is uniform once all losses are small


@dataclass(frozen=True)
class Trusted(Policy):
    """Draw samples with flagged labels a tenth as often as the others, and learned ones less often than the rest.

    ``a_i`` is the moving average of the margin loss of each sample, or of its loss if the feedback has no outputs. Once
    per epoch, fit two normal distributions to ``log a``. If they are clearly apart (see :func:`ausam.audit.flag`),
    samples above their crossing are flagged:

        t = max(log 2, crossing);   s_i = a_i > t, unless most of the class of i is above t
        q_i = min(a_i, log 2);      odds_i = (q_i + c) / (mean of the others' q + c),  c = 0.05 log C;  doubt if s_i

    and ``max(1, int(alpha n))`` of ``n`` samples are drawn without replacement. If they are not apart, the draw is
    uniform, and ``sampler.label_errors().outcome`` says so. Above log 2 the network prefers another class: the cap
    keeps outliers from being favoured, so only learned samples are demoted. A class that is not learned yet is never
    flagged, which protects rare classes, and neither is a sample with fewer than two visits. A decision holds for one
    epoch.

    >>> from ausam import SelectiveBatchSampler, Trusted
    >>> sampler = SelectiveBatchSampler(100, batch_size=32, policy=Trusted([0] * 60 + [1] * 40, alpha=0.5), epochs=30)
    >>> [len(batch) for batch in sampler]
    [16, 16, 16, 2]

    Arguments:
        labels: the class of every sample of the dataset, as whole numbers >= 0. None if there is none: then give
            ``chance_loss``, and only losses above it are flagged.
        alpha: fraction of each mini-batch to keep, in (0, 1].
        start: epochs that draw at random before any decision, because early decisions confirm themselves. It is a
            fraction of all epochs, below 1, or a whole number of epochs, >= 1. A fraction is rounded to whole epochs,
            at least one, and needs the number of epochs.
        ema: weight of a sample's past in its averaged loss, in [0, 1).
        doubt: odds of a flagged sample, where another one has 1 on average, in (0, 1].
        chance_loss: the chance-level loss, > 0. If None, log C, from the labels.
        epochs: number of epochs of the whole training, >= 1. If None, what ``SelectiveBatchSampler(epochs=...)`` says.

    Use it where labels may be wrong, with any method. Not for regression: a loss there has no natural limit.
    Cost: a fraction alpha of the samples.
    """

    labels: Any = field(repr=False, compare=False)
    alpha: Part = 0.5
    start: Epochs = 0.25
    ema: Decay = 0.5
    doubt: Annotated[float, Range(low=0.0, high=1.0, low_open=True)] = 0.1
    chance_loss: Positive | None = None
    epochs: PositiveCount | None = None
    full_epochs = 0
    reads_scores = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels is not None:
            object.__setattr__(self, "labels", torch.from_numpy(class_labels("Trusted", self.labels)))
        elif self.chance_loss is None:
            raise ValueError(
                "Trusted needs the labels, or the chance-level loss: Trusted(labels) with the class of every sample, "
                "or Trusted(None, chance_loss=math.log(number_of_classes))."
            )

    @property
    def decay(self) -> float:  # type: ignore[override]
        """Weight of a sample's past in its score."""
        return self.ema

    @property
    def chance(self) -> float:
        """The chance-level loss."""
        return self.chance_loss if self.chance_loss is not None else math.log(max(2, int(self.labels.max()) + 1))

    def signal(self, feedback: Feedback) -> Tensor:
        """The margin loss of each sample. Its loss where the feedback has no outputs, or there are no labels."""
        z, loss = feedback.outputs, feedback.loss
        if self.labels is None or feedback.index is None or not usable(z, len(loss)):
            return loss
        require_columns(int(self.labels.max()), z.shape[1])
        labels = self.labels.to(z.device)[feedback.index.to(z.device)]
        return torch.where(loss.isfinite(), against_rival(z.detach(), labels)[0].to(loss), torch.nan)

    def decides(self, epoch: int) -> bool:
        """Whether the epoch is drawn by the scores."""
        return epoch >= max(1, in_epochs(self, "start", self.epochs))

    def fit(self, scores: Scores, epoch: int) -> tuple[float, ...]:
        """The limit, the mean of the others' capped losses, and the classes that are not learned yet."""
        if self.labels is not None:
            require_as_many(self.labels, scores, "Trusted")
        if self.alpha == 1 or not self.decides(epoch) or not scores.known:
            return ()
        errors = self._flagged(scores, loss_of_all=False)
        if not len(errors):
            return ()
        others = np.minimum(errors.loss[(scores.count >= VISITS).numpy() & ~errors.flagged], EVEN)
        return errors.limit, float(others.mean()), *map(float, errors.unlearned)

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:  # noqa: ARG002
        """A weighted draw without replacement in each mini-batch."""
        return weighted_sample(self.odds(scores, candidates), kept_count(self.alpha, candidates.shape[1]), rng)

    def odds(self, scores: Scores, index: Tensor) -> Tensor:
        """The odds of these samples, by what :meth:`fit` found when the epoch began."""
        if not scores.fit:
            return torch.ones(index.shape, dtype=torch.float32, device=CPU)
        limit, mean, *unlearned = scores.fit
        level = LEVEL * self.chance
        loss = scores.of(index).masked_fill(scores.count[index] < VISITS, torch.nan)
        odds = (loss.clamp_max(EVEN).nan_to_num(mean) + level) / (mean + level)
        flagged = loss > limit
        if unlearned:
            flagged &= ~torch.isin(self.labels[index], torch.tensor(unlearned, dtype=torch.int64, device=CPU))
        return odds.masked_fill_(flagged, self.doubt)

    def label_errors(self, scores: Scores) -> LabelErrors:
        """All samples, ranked by their averaged loss, and those that are flagged now, whatever the epoch."""
        return self._flagged(scores, loss_of_all=True)

    def _flagged(self, scores: Scores, *, loss_of_all: bool) -> LabelErrors:
        labels = None if self.labels is None else self.labels.numpy()
        loss, seen = scores.mean.double().numpy(), (scores.count >= VISITS).numpy()
        if not loss_of_all:  # whose rank takes eight bytes more
            loss[~seen] = math.nan
        return flag(loss, labels, judged=seen, least=self.chance if labels is None else EVEN, tail=False)
