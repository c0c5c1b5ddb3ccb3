"""Every argument of an Accelerator and of two of its parts: honoured, refused or of no concern to ``prepare``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accelerate import Accelerator
from accelerate.utils import DistributedType

from ausam.integrations._settings import Setting
from ausam.selection import SelectiveBatchSampler

# What shards or owns the parameters itself.
OWNERS = (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM, DistributedType.XLA)


@dataclass(frozen=True)
class Circumstances:
    """What decides whether a setting can be honoured.

    Arguments:
        accelerator: the Accelerator.
        sampler: of the loader that is prepared; None if it is an ordinary one.
    """

    accelerator: Accelerator
    sampler: SelectiveBatchSampler | None = None


def _owned(c: Circumstances) -> str | None:
    # The optimizer that is prepared is then not the one that steps.
    if c.accelerator.distributed_type not in OWNERS:
        return None
    return (
        f"Accelerate runs {c.accelerator.distributed_type.value}, which owns the parameters and the step, so no "
        "weights can be perturbed in between. Use one device or DDP."
    )


def _parallel(c: Circumstances) -> str | None:
    if getattr(c.accelerator, "parallelism_config", None) is None:
        return None
    return "another library then owns the parameters, so no weights can be perturbed. Use one device or DDP."


def _precision(c: Circumstances) -> str | None:
    if c.accelerator.mixed_precision == "fp8":
        return '"fp8" replaces layers and optimizer by those of another library. Use "bf16", "fp16" or "no".'
    return None


def _handlers(c: Circumstances) -> str | None:
    if getattr(getattr(c.accelerator, "ddp_handler", None), "static_graph", False):
        return "DDP's static_graph=True, but a step has passes with and without averaging. Leave it False."
    return None


def _split(c: Circumstances) -> str | None:
    split = bool(c.accelerator.dataloader_config.split_batches)
    if c.sampler is None or c.sampler.split == split:
        return None
    if split:
        return (
            "True deals each mini-batch to all processes, but the sampler does that itself and is not asked to. "
            "Say SelectiveBatchSampler(..., split=True)."
        )
    return (
        "False, but the sampler has split=True, so schedulers would step once per process for a mini-batch that all "
        "processes share. Say Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))."
    )


def _with_sampler(message: str, name: str) -> Callable[[Circumstances], str | None]:
    def refuse(c: Circumstances) -> str | None:
        return message if c.sampler is not None and getattr(c.accelerator.dataloader_config, name) else None

    return refuse


OWNED = Setting("refused", "it owns the parameters and the step")
HONOURED, QUIET = Setting("honoured"), Setting("not concerned")

ACCELERATOR: dict[str, Setting] = {
    "device_placement": HONOURED,
    "split_batches": Setting("not concerned", "an old name of `DataLoaderConfiguration.split_batches`"),
    "mixed_precision": Setting("honoured", '`"bf16"` and `"fp16"`; `"fp8"` is refused', _precision),
    "gradient_accumulation_steps": Setting("honoured", "each micro-batch has its own perturbation"),
    "cpu": HONOURED,
    "dataloader_config": Setting("honoured", "see below"),
    "deepspeed_plugin": OWNED,
    "fsdp_plugin": OWNED,
    "torch_tp_plugin": Setting("refused", "as `parallelism_config`"),
    "megatron_lm_plugin": OWNED,
    "rng_types": HONOURED,
    "log_with": QUIET,
    "project_dir": QUIET,
    "project_config": QUIET,
    "gradient_accumulation_plugin": Setting("honoured", "see below"),
    "step_scheduler_with_optimizer": HONOURED,
    "kwargs_handlers": Setting("honoured", "but DDP's `static_graph` is refused", _handlers),
    "dynamo_backend": HONOURED,
    "dynamo_plugin": HONOURED,
    "deepspeed_plugins": Setting("refused", "as `deepspeed_plugin`"),
    "parallelism_config": Setting("refused", "another library then owns the parameters", _parallel),
}

# Not an argument: what these, or the environment, have led to.
OUTCOME = {"distributed_type": Setting("refused", OWNED.note, _owned)}

LOADER: dict[str, Setting] = {
    "split_batches": Setting(
        "honoured",
        "with our sampler say it there too: `SelectiveBatchSampler(..., split=True)`",
        _split,
    ),
    "dispatch_batches": Setting(
        "honoured",
        "refused with our sampler, which gives each process its own batches",
        _with_sampler(
            "True lets one process read for all, but the sampler gives each process its own batches. Leave it None.",
            "dispatch_batches",
        ),
    ),
    "even_batches": Setting("not concerned", "our sampler always deals equal numbers of batches, and no sample twice"),
    "use_seedable_sampler": Setting("not concerned", "our sampler has a seed of its own"),
    "data_seed": Setting("not concerned", "our sampler has a seed of its own"),
    "non_blocking": HONOURED,
    "use_stateful_dataloader": Setting(
        "honoured",
        "refused with our sampler, whose state `save_state` holds already",
        _with_sampler(
            "True keeps the position a second time: save_state holds the sampler's already. Leave it False.",
            "use_stateful_dataloader",
        ),
    ),
}

ACCUMULATION: dict[str, Setting] = {
    "num_steps": HONOURED,
    "adjust_scheduler": Setting("not concerned", "between Accelerate and its scheduler"),
    "sync_with_dataloader": HONOURED,
    "sync_each_batch": HONOURED,
}
