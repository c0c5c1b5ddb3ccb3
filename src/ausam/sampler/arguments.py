"""Argument checks and warnings of the sampler."""

from __future__ import annotations

import warnings
from collections.abc import Sized

from torch.utils.data import Sampler, Subset

from ausam.common.settings import COUNT, POSITIVE_COUNT, OneOf, Range, YesNo, checked_value
from ausam.policies.base import MEMBERS, Policy
from ausam.policies.signals import AT_PERTURBED_WEIGHTS, RANKED_BY
from ausam.sampler.indexed import Indexed
from ausam.sampler.scores import Scores

OWNER = "SelectiveBatchSampler"


def checked_length(dataset: Sized | int) -> int:
    """The number of samples."""
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, Indexed):
        raise TypeError(
            "Subset(Indexed(dataset)) delivers indices of the whole dataset, but the sampler counts the subset. "
            "Swap the two: Indexed(Subset(dataset, ...))."
        )
    if hasattr(dataset, "__len__"):
        n = len(dataset)
        if n < 1:
            raise ValueError(f"{OWNER}: the dataset has {n} samples. There must be at least 1.")
        return n
    return checked_count("dataset", dataset)


def checked_count(name: str, value: int) -> int:
    """Require a whole number >= 1."""
    number: int = checked_value(OWNER, name, value, POSITIVE_COUNT)
    return number


def checked_seed(name: str, value: int) -> int:
    """Require a whole number >= 0."""
    number: int = checked_value(OWNER, name, value, COUNT)
    return number


def checked_flag(name: str, value: bool) -> bool:
    """Require True or False."""
    flag: bool = checked_value(OWNER, name, value, YesNo())
    return flag


def check_policy(policy: Policy) -> None:
    """Refuse an object that does not have a policy's interface."""
    if isinstance(policy, type) or not hasattr(policy, "choose"):
        raise TypeError(f"policy is {policy!r}. Pass an instance, such as AUSampling(alpha=0.5).")
    name = type(policy).__name__
    missing = [member for member in MEMBERS if not hasattr(policy, member)]
    if missing:
        raise TypeError(f"{name} has no {' and no '.join(missing)}, which every policy must define. See ausam.Policy.")
    checked_value(name, "signal", policy.signal, RANKED_BY)
    checked_value(name, "scope", policy.scope, OneOf(("batch", "epoch", "slice")))
    if policy.scope == "slice" and not (hasattr(policy, "slice") and hasattr(policy, "size")):
        raise TypeError(f'{name} has scope "slice", so it must define slice(epoch, n) and size(n). See ausam.Policy.')
    checked_value(name, "period", policy.period, POSITIVE_COUNT)
    checked_value(name, "decay", policy.decay, Range(low=0.0, high=1.0))
    checked_value(name, "spread", policy.spread, YesNo())


def check_sizes(n: int, batch_size: int, min_batch: int, drop_last: bool) -> None:
    """Refuse sizes that contradict each other."""
    if drop_last and n < batch_size:
        raise ValueError(
            f"drop_last=True leaves nothing of {n} samples with batch_size {batch_size}. Use a smaller batch_size."
        )
    if n < min_batch:
        raise ValueError(f"min_batch is {min_batch}, but the dataset has {n} samples. Use a smaller min_batch.")


def refuse_sampler(*args: object, **kwargs: object) -> None:
    """Raise a TypeError if a sampler is passed as the dataset: a framework is rebuilding our sampler."""
    if any(isinstance(given, Sampler) for given in (*args[:1], kwargs.get("dataset"))):
        raise TypeError(
            "A framework tried to rebuild the SelectiveBatchSampler around its own sampler, so the one that you update "
            "would no longer be in use. SelectiveBatchSampler already divides the batches among the processes. With "
            "Lightning, use Trainer(use_distributed_sampler=False) or ausam.integrations.lightning.SelectiveLoader."
        )


def warn_if_blind(policy: Policy, scores: Scores, epoch: int) -> None:
    """Warn if a policy has to choose but no score has arrived."""
    if epoch > 0 and policy.signal in AT_PERTURBED_WEIGHTS and not scores.known:
        does = "draws uniformly" if policy.signal != "perturbed" else "has nothing to rank by"
        warnings.warn(
            f"No score has reached the sampler before epoch {epoch}: {type(policy).__name__} {does}. "
            "Call sampler.update(opt.backward(..., index=index)) in each step, with a method that evaluates the loss "
            "at perturbed weights.",
            stacklevel=3,
        )


class Bystander:
    """Warns about a sampler that is updated but never asked for batches, so that nothing is selected.

    Arguments:
        policy: the sampler's policy.
        n: number of samples.
    """

    def __init__(self, policy: Policy, n: int) -> None:
        self._name = type(policy).__name__
        self._n = n
        self._done = policy.kept >= 1  # nothing is left out in any case
        self._seen = 0

    def asked(self) -> None:
        """Record that the sampler was iterated over, or that ``pick`` was called."""
        self._done = True

    def updated(self, samples: int, world: int) -> None:
        """Warn once if a whole pass was fed back unasked; ``samples`` counts one of ``world`` processes."""
        self._seen += samples * world
        if not self._done and self._seen > self._n:
            self._done = True
            warnings.warn(
                f"sampler.update has received the losses of more than a whole pass ({self._n} samples), but the "
                "sampler was never iterated over and sampler.pick was never called. Training uses every sample, and "
                f"{self._name} selects nothing. Use DataLoader(dataset, batch_sampler=sampler), or train on the rows "
                "keep = sampler.pick(index).",
                stacklevel=3,
            )
