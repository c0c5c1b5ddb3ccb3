"""What a sampler refuses, and what it warns about."""

from __future__ import annotations

import warnings
from collections.abc import Sized

from torch.utils.data import Sampler, Subset

from ausam.selection.dataset import Indexed
from ausam.selection.policy import MEMBERS, Policy
from ausam.selection.scores import Scores
from ausam.selection.signals import AT_PERTURBED_WEIGHTS, RANKED_BY
from ausam.settings import OneOf, Range, YesNo, holding

OWNER = "SelectiveBatchSampler"
COUNT = Range(low=0, whole=True)
POSITIVE = Range(low=1, whole=True)


def checked_length(dataset: Sized | int) -> int:
    """The number of samples."""
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, Indexed):
        raise TypeError(
            "Subset(Indexed(dataset)) delivers indices of the whole dataset, but the sampler counts the subset. "
            "Turn them round: Indexed(Subset(dataset, ...))."
        )
    if hasattr(dataset, "__len__"):
        n = len(dataset)
        if n < 1:
            raise ValueError(f"{OWNER}: the dataset has {n} samples. There must be at least 1.")
        return n
    return checked_count("dataset", dataset)


def checked_count(name: str, value: int) -> int:
    """An argument that is a whole number from 1 up."""
    number: int = holding(OWNER, name, value, POSITIVE)
    return number


def checked_seed(name: str, value: int) -> int:
    """An argument that is a whole number from 0 up."""
    number: int = holding(OWNER, name, value, COUNT)
    return number


def checked_flag(name: str, value: bool) -> bool:
    """An argument that is True or False."""
    flag: bool = holding(OWNER, name, value, YesNo())
    return flag


def check_policy(policy: Policy) -> None:
    """Refuse what is not a policy."""
    if isinstance(policy, type) or not hasattr(policy, "choose"):
        raise TypeError(f"policy is {policy!r}, but an instance such as AUSampling(alpha=0.5) is needed.")
    name = type(policy).__name__
    missing = [member for member in MEMBERS if not hasattr(policy, member)]
    if missing:
        raise TypeError(
            f"{name} has no {' and no '.join(missing)}, which a policy declares. See ausam.Policy for what each means."
        )
    holding(name, "signal", policy.signal, RANKED_BY)
    holding(name, "scope", policy.scope, OneOf(("batch", "epoch", "slice")))
    if policy.scope == "slice" and not (hasattr(policy, "slice") and hasattr(policy, "size")):
        raise TypeError(f'{name} is of scope "slice", so it needs slice(epoch, n) and size(n). See ausam.Policy.')
    holding(name, "period", policy.period, POSITIVE)
    holding(name, "decay", policy.decay, Range(low=0.0, high=1.0))
    holding(name, "spread", policy.spread, YesNo())


def check_sizes(n: int, batch_size: int, min_batch: int, drop_last: bool) -> None:
    """Refuse numbers that do not fit together."""
    if drop_last and n < batch_size:
        raise ValueError(
            f"drop_last=True leaves nothing of {n} samples with batch_size {batch_size}. Use a smaller batch_size."
        )
    if n < min_batch:
        raise ValueError(f"min_batch is {min_batch}, but the dataset has {n} samples. Use a smaller min_batch.")


def refuse_sampler(*args: object, **kwargs: object) -> None:
    """Raise a TypeError if a sampler is given in place of the dataset: somebody else builds our sampler again."""
    if any(isinstance(given, Sampler) for given in (*args[:1], kwargs.get("dataset"))):
        raise TypeError(
            "A framework tried to build the SelectiveBatchSampler again, around a sampler of its own: the one that you "
            "update would no longer be in use. It deals the batches to the processes itself, so with Lightning say "
            "Trainer(use_distributed_sampler=False), or train on ausam.integrations.lightning.SelectiveLoader."
        )


def warn_if_blind(policy: Policy, scores: Scores, epoch: int) -> None:
    """Say so if a policy has to choose by scores that never came."""
    if epoch > 0 and policy.signal in AT_PERTURBED_WEIGHTS and not scores.known:
        does = "draws uniformly" if policy.signal != "perturbed" else "has nothing to choose by"
        warnings.warn(
            f"No score has reached the sampler before epoch {epoch}: {type(policy).__name__} {does}. "
            "Call sampler.update(opt.backward(..., index=index)) each step, with a method that evaluates the loss "
            "at perturbed weights.",
            stacklevel=3,
        )


class Bystander:
    """Notices a sampler that is updated but that nobody asks for batches: then every sample is trained on.

    Arguments:
        policy: the sampler's.
        n: number of samples.
    """

    def __init__(self, policy: Policy, n: int) -> None:
        self._name = type(policy).__name__
        self._n = n
        self._done = policy.kept >= 1  # it leaves nothing out, asked or not
        self._seen = 0

    def asked(self) -> None:
        """The sampler has been iterated, or has picked."""
        self._done = True

    def updated(self, samples: int, world: int) -> None:
        """Warn, once, if a whole pass was fed back without a question; ``samples`` are one process's of ``world``."""
        self._seen += samples * world
        if not self._done and self._seen > self._n:
            self._done = True
            warnings.warn(
                f"sampler.update has taken the losses of more than a whole pass ({self._n} samples), but nobody has "
                f"iterated over the sampler or called its pick: every sample is being trained on, and {self._name} "
                "selects nothing. Give it to the loader, DataLoader(dataset, batch_sampler=sampler), or train on "
                "keep = sampler.pick(index).",
                stacklevel=3,
            )
