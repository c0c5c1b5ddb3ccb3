"""Policy: the base class of every policy, with defaults for all that a simple one need not say."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING

from torch import Generator, Tensor

from ausam.common.settings import OneOf, checked_value, validate
from ausam.policies.draws import Choice, everything, kept_count
from ausam.policies.signals import SIGNAL, AnySignal

if TYPE_CHECKING:
    from ausam.sampler.scores import Scores


class Policy:
    """A pure rule that chooses among candidates. All state is in the scores, which the sampler owns.

    A policy is a frozen dataclass that inherits from this class and defines ``select``. Everything else has a default:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from ausam import Policy, SelectiveBatchSampler
    >>> @dataclass(frozen=True)
    ... class FirstOnes(Policy):
    ...     alpha: float = 0.5
    ...     def select(self, scores, epoch, candidates, rng):
    ...         return torch.arange(self.count(epoch, candidates.shape[1])).expand(len(candidates), -1), None
    >>> sampler = SelectiveBatchSampler(10, batch_size=4, policy=FirstOnes())
    >>> [[len(batch) for batch in sampler] for epoch in range(2)]
    [[4, 4, 2], [2, 2, 1]]
    """

    # This class is not a dataclass itself: a subclass that turns one of these into a field decides its position.

    signal: AnySignal = "loss"
    """What ``sampler.update`` records of each sample: a name in :data:`ausam.policies.signals.SIGNALS`, or a function
    of a :class:`~ausam.Feedback` that returns one value per sample: a field, a method, or ``staticmethod(function)``.
    None: nothing; the scores change only by ``sampler.scores.set``."""

    scope = "batch"
    """Where the policy chooses.

    "batch": inside each mini-batch.
    "epoch": among all samples, passed as one row in random order; the chosen ones are then shuffled and split into
    mini-batches."""

    period = 1
    """Number of epochs that share a choice of scope "epoch", >= 1, not counting the first epoch. Otherwise 1."""

    decay = 1.0
    """Weight of a sample's past in its score, in [0, 1]: 1 for the mean of all visits, 0 for the latest value."""

    spread = False
    """Whether the policy reads ``scores.spread``, which takes four more bytes per sample."""

    reads_scores = False
    """Whether the choice depends on the scores. If it does, the sampler warns when it has to choose without any."""

    replacement = False
    """Whether a choice of scope "epoch" may hold a sample several times."""

    full_epochs = 1
    """Number of initial epochs that use every sample, so that every sample has a score before any is left out."""

    def __post_init__(self) -> None:
        if is_dataclass(self):
            validate(self)

    @property
    def kept(self) -> float:
        """Approximate fraction of the samples used after the full epochs: ``alpha``, or 1 without it."""
        alpha: float = getattr(self, "alpha", 1.0)
        return alpha

    def is_full(self, epoch: int) -> bool:
        """Whether the epoch uses every sample."""
        return epoch < self.full_epochs or self.kept >= 1

    def count(self, epoch: int, n: int) -> int | None:
        """How many of ``n`` candidates are kept in this epoch. The sampler computes the length of the epoch from it.

        None if it depends on the scores. Only scope "epoch" allows that.
        """
        return n if self.is_full(epoch) else kept_count(self.kept, n)

    def order_id(self, epoch: int) -> int:
        """Which random order of the samples an epoch of scope "epoch" gets. Epochs of the same number share one."""
        return epoch

    def size(self, n: int) -> int:
        """Samples per mini-batch for scope "epoch", where ``n`` is the sampler's batch size."""
        return n

    def fit(self, scores: Scores, epoch: int) -> tuple[float, ...]:  # noqa: ARG002
        """What the policy derives from all scores when an epoch begins, for scope "batch". ``scores.fit`` keeps it.

        In a stream and in ``sampler.pick``, the scores change while the epoch goes on. A choice inside a mini-batch may
        read the scores of its candidates and ``scores.fit``, but no other scores.
        """
        return ()

    def choose(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """What the sampler calls: every position in a full epoch, otherwise what ``select`` returns."""
        if self.is_full(epoch):
            return everything(candidates)
        return self.select(scores, epoch, candidates, rng)

    def select(self, scores: Scores, epoch: int, candidates: Tensor, rng: Generator) -> Choice:
        """Positions to keep in each row of ``candidates`` (mini-batches x samples), and their weights or None.

        Return as many positions per row as ``count`` says, and draw from ``rng`` alone.
        """
        raise NotImplementedError(
            f"{type(self).__name__} leaves samples out (kept is {self.kept:g}), but does not say which. Define "
            "select(self, scores, epoch, candidates, rng), which returns the positions to keep in each row, and their "
            "weights or None."
        )


def with_epochs(policy: Policy, epochs: int) -> Policy:
    """The policy in a training of this many epochs: a field ``epochs`` that is None gets the number."""
    takes_epochs = is_dataclass(policy) and "epochs" in {f.name for f in fields(policy)}
    return replace(policy, epochs=epochs) if takes_epochs and policy.epochs is None else policy  # type: ignore


def in_epochs(policy: Policy, setting: str, epochs: int | None) -> int:
    """A setting as a whole number of epochs: below 1 it is a fraction of all epochs, at least one of them."""
    value = getattr(policy, setting)
    if value == int(value):
        return int(value)
    if epochs is None:
        raise ValueError(
            f"{type(policy).__name__}: {setting} is {value:g}, a fraction of the epochs, but their number is not known."
            f" Say how many epochs you train, SelectiveBatchSampler(..., epochs=30), or give it in epochs, {setting}=5."
        )
    return max(1, int(value * epochs + 0.5))


def validate_policy(policy: Policy) -> None:
    """Raise an error if the object is no policy, or one whose settings cannot work."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise TypeError(
            f"policy is {policy!r}. Pass an instance, such as AUSampling(alpha=0.5). A class of your own inherits from "
            "ausam.Policy."
        )
    name = type(policy).__name__
    if policy.signal is not None:
        checked_value(name, "signal", policy.signal, SIGNAL)
    checked_value(name, "scope", policy.scope, OneOf(("batch", "epoch")))


def require_as_many(labels: Tensor, scores: Scores, owner: str) -> None:
    """Raise if there is not one label for every sample."""
    if len(labels) != len(scores):
        raise ValueError(
            f"{owner} has {len(labels)} labels, but the dataset has {len(scores)} samples. "
            "Pass the label of every sample, in the order of the dataset."
        )
