"""Every argument of an Accelerator and of its two configurations: honoured, refused or irrelevant to ``prepare``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accelerate import Accelerator
from accelerate.utils import DistributedType

from ausam.integrations._settings import Setting
from ausam.sampler import SelectiveBatchSampler

# Distributed types that shard or own the parameters themselves.
OWNERS = (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM, DistributedType.XLA)


@dataclass(frozen=True)
class Circumstances:
    """The facts that decide whether a setting can be honoured.

    Arguments:
        accelerator: the Accelerator.
        sampler: the sampler of the loader to prepare; None for an ordinary loader.
    """

    accelerator: Accelerator
    sampler: SelectiveBatchSampler | None = None


def _owned(c: Circumstances) -> str | None:
    # In these cases the prepared optimizer is not the one that steps.
    if c.accelerator.distributed_type not in OWNERS:
        return None
    return (
        f"Accelerate runs {c.accelerator.distributed_type.value}, which owns the parameters and the step, so the "
        "weights cannot be perturbed in between. Use one device or DDP."
    )


def _parallel(c: Circumstances) -> str | None:
    if getattr(c.accelerator, "parallelism_config", None) is None:
        return None
    return "with it, another library owns the parameters, so they cannot be perturbed. Use one device or DDP."


def _precision(c: Circumstances) -> str | None:
    if c.accelerator.mixed_precision == "fp8":
        return '"fp8" replaces layers and the optimizer by those of another library. Use "bf16", "fp16" or "no".'
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
            "True divides each mini-batch among the processes, but the sampler was built with split=False. "
            "Use SelectiveBatchSampler(..., split=True)."
        )
    return (
        "False, but the sampler has split=True, so schedulers would step once per process for a mini-batch that all "
        "processes share. Use Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))."
    )


def _with_sampler(message: str, name: str) -> Callable[[Circumstances], str | None]:
    def refuse(c: Circumstances) -> str | None:
        return message if c.sampler is not None and getattr(c.accelerator.dataloader_config, name) else None

    return refuse


OWNED = Setting("refused", "it owns the parameters and the step")
HONOURED, QUIET = Setting("honoured"), Setting("not concerned")

ACCELERATOR: dict[str, Setting] = {
    "device_placement": HONOURED,
    "split_batches": Setting("not concerned", "the old name of `DataLoaderConfiguration.split_batches`"),
    "mixed_precision": Setting("honoured", '`"bf16"` and `"fp16"`; `"fp8"` is refused', _precision),
    "gradient_accumulation_steps": Setting("honoured", "each micro-batch has its own perturbation"),
    "cpu": HONOURED,
    "dataloader_config": Setting("honoured", "see below"),
    "deepspeed_plugin": OWNED,
    "fsdp_plugin": OWNED,
    "torch_tp_plugin": Setting("refused", "like `parallelism_config`"),
    "megatron_lm_plugin": OWNED,
    "rng_types": HONOURED,
    "log_with": QUIET,
    "project_dir": QUIET,
    "project_config": QUIET,
    "gradient_accumulation_plugin": Setting("honoured", "see below"),
    "step_scheduler_with_optimizer": HONOURED,
    "kwargs_handlers": Setting("honoured", "except DDP's `static_graph`, which is refused", _handlers),
    "dynamo_backend": HONOURED,
    "dynamo_plugin": HONOURED,
    "deepspeed_plugins": Setting("refused", "like `deepspeed_plugin`"),
    "parallelism_config": Setting("refused", "with it, another library owns the parameters", _parallel),
}

# Not an argument, but the result of the arguments or the environment.
OUTCOME = {"distributed_type": Setting("refused", OWNED.note, _owned)}

LOADER: dict[str, Setting] = {
    "split_batches": Setting(
        "honoured",
        "with our sampler, set it there too: `SelectiveBatchSampler(..., split=True)`",
        _split,
    ),
    "dispatch_batches": Setting(
        "honoured",
        "refused with our sampler, which gives each process its own batches",
        _with_sampler(
            "True makes one process read for all, but the sampler gives each process its own batches. Leave it None.",
            "dispatch_batches",
        ),
    ),
    "even_batches": Setting("not concerned", "our sampler always gives equal numbers of batches, and no sample twice"),
    "use_seedable_sampler": Setting("not concerned", "our sampler has its own seed"),
    "data_seed": Setting("not concerned", "our sampler has its own seed"),
    "non_blocking": HONOURED,
    "use_stateful_dataloader": Setting(
        "honoured",
        "refused with our sampler, whose state `save_state` already contains",
        _with_sampler(
            "True saves the position a second time: save_state already contains the sampler's. Leave it False.",
            "use_stateful_dataloader",
        ),
    ),
}

ACCUMULATION: dict[str, Setting] = {
    "num_steps": HONOURED,
    "adjust_scheduler": Setting("not concerned", "left to Accelerate and its scheduler"),
    "sync_with_dataloader": HONOURED,
    "sync_each_batch": HONOURED,
}
