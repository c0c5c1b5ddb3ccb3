"""InfoBatch (Qin et al., ICLR 2024): leave out some of the well-learned samples, and weight the others of them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from torch import Generator, Tensor, ones

from ausam.common.settings import OneOf, PositiveCount, Probability, Range, validate
from ausam.policies.base import Choice, everything
from ausam.policies.pruning import thin

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


@dataclass(frozen=True)
class InfoBatch:
    """Leave out a random fraction of the samples whose latest loss is below the mean.

        W = {i: l_i < mean(l)};  int((1 - prune) |W|) of W stay, with weight 1 / (1 - prune);  all others, with weight 1

    so ``opt.backward(..., weight=sampler.weight(index))`` keeps the expected sum. First and last epochs use everything.
    Qin et al.: InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning, ICLR 2024.

    >>> from ausam import InfoBatch, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(50000, batch_size=128, policy=InfoBatch(prune=0.5, epochs=200))

    Arguments:
        prune: fraction of the well-learned samples to leave out, in [0, 1).
        anneal: fraction of the epochs, at the end, that uses every sample, in [0, 1]. No effect without ``epochs``.
        epochs: number of epochs of the whole training, >= 1; None: never anneal.
        on: "first": the loss at w (the paper's SAM+Info*); "second": the loss at w + e (SAM+Info).

    The choice reads all scores at once, so the first batch of each epoch waits for it. It takes five bytes per sample
    on top of the scores, and more while it is made. Cost: about 0.65 of the samples with prune 0.5.
    """

    prune: Annotated[float, Range(low=0.0, high=1.0, high_open=True)] = 0.5
    anneal: Probability = 0.125
    epochs: PositiveCount | None = None
    on: Annotated[str, OneOf(("first", "second"))] = "first"
    scope: ClassVar[str] = "epoch"
    period: ClassVar[int] = 1
    decay: ClassVar[float] = 1.0
    spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate(self)

    @property
    def signal(self) -> str:
        """The loss that decides."""
        return "loss" if self.on == "first" else "perturbed"

    @property
    def kept(self) -> float:
        """Approximate fraction of the samples used: losses are skewed, and some 70 % lie below their mean."""
        return 1 - 0.7 * self.prune

    def count(self, epoch: int, n: int) -> int | None:
        """Known if the epoch uses every sample; otherwise it depends on how many losses lie below their mean."""
        return n if self._full(epoch) else None

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """All samples that are not well learned (or have no loss), and a random fraction of the others."""
        if self._full(epoch):
            return everything(candidates)[0], ones(1).expand(candidates.shape)
        return thin(scores.last[candidates[0]] < scores.level(), 1 - self.prune, rng)

    def _full(self, epoch: int) -> bool:
        return epoch == 0 or (self.epochs is not None and epoch >= (1 - self.anneal) * self.epochs - 1e-9)
