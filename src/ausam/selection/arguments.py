"""What a sampler refuses, and what it warns about."""

from __future__ import annotations

import warnings
from collections.abc import Sized

from torch.utils.data import Sampler, Subset

from ausam.selection.dataset import Indexed
from ausam.selection.policy import Policy
from ausam.selection.scores import Scores
from ausam.selection.signals import AT_PERTURBED_WEIGHTS, check_signal


def checked_size(dataset: Sized | int, batch_size: int, policy: Policy, drop_last: bool, seed: int) -> int:
    """The number of samples, if the arguments make sense together."""
    if isinstance(dataset, Subset) and isinstance(dataset.dataset, Indexed):
        raise TypeError(
            "Subset(Indexed(dataset)) delivers indices of the whole dataset, but the sampler counts the subset. "
            "Turn them round: Indexed(Subset(dataset, ...))."
        )
    n = dataset if isinstance(dataset, int) else len(dataset)
    if n < 1 or batch_size < 1:
        raise ValueError(f"The dataset has {n} samples and batch_size is {batch_size}; both must be at least 1.")
    if drop_last and n < batch_size:
        raise ValueError(
            f"drop_last=True leaves nothing of {n} samples with batch_size {batch_size}. Use a smaller batch_size."
        )
    if isinstance(policy, type) or not hasattr(policy, "choose"):
        raise TypeError(f"policy is {policy!r}, but an instance such as AUSampling(alpha=0.5) is needed.")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}; give a whole number from 0 up.")
    check_signal(type(policy).__name__, policy.signal)
    return n


def refuse_sampler(*args: object, **kwargs: object) -> None:
    """Raise a TypeError if a sampler is given in place of the dataset: somebody else builds our sampler anew."""
    if any(isinstance(given, Sampler) for given in (*args[:1], kwargs.get("dataset"))):
        raise TypeError(
            "A framework tried to build the SelectiveBatchSampler anew, around a sampler of its own: the one that you "
            "update would no longer be in use. It deals the batches to the processes itself, so with Lightning say "
            "Trainer(use_distributed_sampler=False), or train on ausam.integrations.lightning.SelectiveLoader."
        )


def warn_if_blind(policy: Policy, scores: Scores, epoch: int) -> None:
    """Say so if a policy has to choose by scores that never came."""
    if epoch > 0 and policy.signal in AT_PERTURBED_WEIGHTS and not bool(scores.count.any()):
        does = "draws uniformly" if policy.signal == "sharpness" else "has nothing to choose by"
        warnings.warn(
            f"No score has reached the sampler before epoch {epoch}: {type(policy).__name__} {does}. "
            "Call sampler.update(opt.backward(..., index=index)) each step, with a method that evaluates the loss "
            "at perturbed weights.",
            stacklevel=3,
        )
