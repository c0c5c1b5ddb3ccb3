"""InfoBatch (Qin et al., ICLR 2024): leave out a random part of the well-learned samples, weigh the rest of them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor, ones

from ausam.selection.policy import Choice, everything, require
from ausam.selection.pruning import thin
from ausam.selection.scores import Scores


@dataclass(frozen=True)
class InfoBatch:
    """Leave out a random part of the samples whose last loss is below the mean (Qin et al.: InfoBatch, ICLR 2024).

        W = {i: l_i < mean(l)};  int((1 - prune) |W|) of W stay, with weight 1 / (1 - prune);  all others, with weight 1

    so ``opt.backward(..., weight=sampler.weight(index))`` keeps the expected sum. First and last epochs use everything.

    >>> from ausam import InfoBatch, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(50000, batch_size=128, policy=InfoBatch(prune=0.5, epochs=200))

    Arguments:
        prune: part of the well-learned samples that is left out, in [0, 1).
        anneal, epochs: part of the ``epochs`` of training, at the end, that uses every sample, in [0, 1]; None: never.
        on: "first": the loss at w (the paper's SAM+Info*); "second": the loss at w + e (SAM+Info).
    """

    prune: float = 0.5
    anneal: float = 0.125
    epochs: int | None = None
    on: str = "first"
    scope: ClassVar[str] = "epoch"
    decay: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.prune < 1, f"InfoBatch: prune is {self.prune}, a part that is left out: 0 <= prune < 1.")
        require(0 <= self.anneal <= 1, f"InfoBatch: anneal is {self.anneal}, a part of all epochs: 0 <= anneal <= 1.")
        require(self.epochs is None or self.epochs > 0, f"InfoBatch: epochs is {self.epochs}; it is > 0, or None.")
        require(self.on in ("first", "second"), f'InfoBatch: on is {self.on!r}; it is "first" or "second".')

    @property
    def signal(self) -> str:
        """The loss it looks at."""
        return "loss" if self.on == "first" else "perturbed"

    @property
    def kept(self) -> float:
        """Part of the samples that is used, about: losses are skewed, some 70 % lie below their mean."""
        return 1 - 0.7 * self.prune

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """All that are not well learned (or have no loss), and a random part of those that are."""
        if epoch == 0 or (self.epochs is not None and epoch >= (1 - self.anneal) * self.epochs - 1e-9):
            return everything(candidates)[0], ones(1).expand(candidates.shape)
        return thin(scores.last[candidates[0]] < scores.level(), 1 - self.prune, rng)
