"""TrainingArguments that a SharpnessAwareTrainer cannot honour. All others are the Trainer's own.

"By rows" means with a loss per sample, which a policy, some methods (ESAM, KSAM, SAF, ...) and an overridden ``losses``
need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def refuse_arguments(args: Any, *, policy: bool, by_rows: bool, own_losses: bool) -> None:
    """Raise a ValueError for the first argument that cannot be honoured.

    Arguments:
        args: the TrainingArguments.
        policy: whether a policy chooses the samples.
        by_rows: whether training needs the loss of each sample.
        own_losses: whether the user has overridden ``losses``.
    """
    for problem in (*_always(args), *(_with_policy(args) if policy else ())):
        raise ValueError(problem)
    if args.use_liger_kernel and by_rows and not own_losses:
        raise ValueError(
            "use_liger_kernel: its fused loss computes no logits, and without them there is no loss per sample. "
            "Leave it False, or override losses(model, inputs)."
        )


def _always(args: Any) -> Iterator[str]:
    for name in ("parallelism_config", "fsdp", "deepspeed"):
        if getattr(args, name):
            yield (
                f"{name}: with it, another library owns the parameters and the step, so SAM cannot perturb them. "
                "Use one device or DDP."
            )
    optim = str(getattr(args.optim, "value", args.optim))
    if "lomo" in optim or "layerwise" in optim:
        yield (
            f"optim: {optim} steps inside backward, which runs several times per step. Use another, such as "
            "adamw_torch."
        )
    if args.ddp_static_graph:
        yield "ddp_static_graph: a step has passes with and without averaging, so the graph changes. Leave it None."


def _with_policy(args: Any) -> Iterator[str]:
    if args.train_sampling_strategy != "random":
        yield (
            f"train_sampling_strategy: {args.train_sampling_strategy!r} orders the samples, but the policy's sampler "
            'draws them. Leave it at "random", or leave out the policy.'
        )
    if not args.dataloader_in_order:
        yield (
            "dataloader_in_order: False lets batches overtake each other, and the sampler counts them in order. "
            "Leave it True."
        )
    if args.ignore_data_skip:
        yield (
            "ignore_data_skip: True would restart the epoch, but the sampler continues where it stopped and skips at "
            "no cost. Leave it False."
        )
    if getattr(args.accelerator_config, "dispatch_batches", None):
        yield (
            "accelerator_config: dispatch_batches=True makes one process read for all, but the sampler gives each "
            "process its own batches. Leave it None."
        )
