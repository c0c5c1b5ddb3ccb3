"""Every field of Transformers' TrainingArguments: honoured, refused or irrelevant to a SharpnessAwareTrainer.

"By rows" means with a loss per sample, which a policy, some methods (ESAM, KSAM, SAF, ...) and an overridden ``losses``
need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ausam.integrations._settings import Setting

OWNS = "with it, another library owns the parameters and the step, so SAM cannot perturb them. Use one device or DDP."


@dataclass(frozen=True)
class Circumstances:
    """The facts that decide whether a setting can be honoured.

    Arguments:
        args: the TrainingArguments.
        policy: whether a policy chooses the samples.
        by_rows: whether training needs the loss of each sample.
        own_losses: whether the user has overridden ``losses``.
    """

    args: Any
    policy: bool
    by_rows: bool
    own_losses: bool


def _optim(c: Circumstances) -> str | None:
    name = str(getattr(c.args.optim, "value", c.args.optim))
    if "lomo" in name or "layerwise" in name:
        return f"{name} steps inside backward, which runs several times per step. Use another, such as adamw_torch."
    return None


def _batches(c: Circumstances) -> str | None:
    if c.policy and c.args.train_sampling_strategy != "random":
        return (
            f"{c.args.train_sampling_strategy!r} orders the samples, but the policy's sampler draws them. "
            'Leave it at "random", or leave out the policy.'
        )
    return None


def _liger(c: Circumstances) -> str | None:
    if c.args.use_liger_kernel and c.by_rows and not c.own_losses:
        return (
            "its fused loss computes no logits, and without them there is no loss per sample. "
            "Leave it False, or override losses(model, inputs)."
        )
    return None


def _in_order(c: Circumstances) -> str | None:
    if c.policy and not c.args.dataloader_in_order:
        return "False lets batches overtake each other, and the sampler counts them in order. Leave it True."
    return None


def _skip(c: Circumstances) -> str | None:
    if c.policy and c.args.ignore_data_skip:
        return (
            "True would restart the epoch, but the sampler continues where it stopped and skips at no cost. "
            "Leave it False."
        )
    return None


def _accelerator(c: Circumstances) -> str | None:
    config = c.args.accelerator_config
    if c.policy and getattr(config, "dispatch_batches", None):
        return (
            "dispatch_batches=True makes one process read for all, but the sampler gives each process its own batches. "
            "Leave it None."
        )
    return None


def _owned(name: str) -> Setting:
    return Setting("refused", OWNS, lambda c: OWNS if getattr(c.args, name) else None)


def _static(c: Circumstances) -> str | None:
    if c.args.ddp_static_graph:
        return "a step has passes with and without averaging, so DDP's graph is not static. Leave it None."
    return None


HONOURED, QUIET = Setting("honoured"), Setting("not concerned")
LOADER = Setting("honoured", "also by the loader of a policy")

TABLE: dict[str, Setting] = {
    "output_dir": QUIET,
    "per_device_train_batch_size": Setting("honoured", "with a policy: the mini-batch that it chooses from"),
    "num_train_epochs": HONOURED,
    "max_steps": HONOURED,
    "learning_rate": Setting("honoured", "that of the base optimizer"),
    "lr_scheduler_type": HONOURED,
    "lr_scheduler_kwargs": HONOURED,
    "warmup_steps": HONOURED,
    "optim": Setting("honoured", "any, except LOMO and layerwise ones, which step inside `backward`", _optim),
    "optim_args": HONOURED,
    "weight_decay": HONOURED,
    "adam_beta1": HONOURED,
    "adam_beta2": HONOURED,
    "adam_epsilon": HONOURED,
    "optim_target_modules": HONOURED,
    "gradient_accumulation_steps": Setting("honoured", "each micro-batch has its own perturbation"),
    "average_tokens_across_devices": Setting("honoured", "no effect by rows, where sequences count and not tokens"),
    "max_grad_norm": Setting("honoured", "clips the final gradient, once per step"),
    "label_smoothing_factor": Setting("honoured", "by rows too; refused there for regression, at the first batch"),
    "bf16": HONOURED,
    "fp16": Setting("honoured", "an overflow in any pass skips the step"),
    "bf16_full_eval": QUIET,
    "fp16_full_eval": QUIET,
    "tf32": HONOURED,
    "activation_checkpointing": Setting("honoured", "Transformers 5.23's new name of `gradient_checkpointing`"),
    "activation_checkpointing_kwargs": Setting("honoured", "likewise"),
    "gradient_checkpointing": HONOURED,
    "gradient_checkpointing_kwargs": HONOURED,
    "torch_compile": HONOURED,
    "torch_compile_backend": HONOURED,
    "torch_compile_mode": HONOURED,
    "use_liger_kernel": Setting("honoured", "refused by rows, because it computes no logits", _liger),
    "liger_kernel_config": Setting("honoured", "like `use_liger_kernel`"),
    "use_cache": HONOURED,
    "neftune_noise_alpha": Setting("honoured", 'new noise in each pass; the same with `settings={"replay": True}`'),
    "torch_empty_cache_steps": HONOURED,
    "auto_find_batch_size": Setting("honoured", "with a policy, a smaller batch starts with new scores"),
    "logging_strategy": QUIET,
    "logging_steps": QUIET,
    "logging_first_step": QUIET,
    "log_on_each_node": QUIET,
    "logging_nan_inf_filter": Setting("honoured", "for logs; `SharpnessAware(nonfinite=...)` decides about the step"),
    "include_num_input_tokens_seen": Setting("honoured", "tokens of a batch count once, whatever the number of passes"),
    "log_level": QUIET,
    "log_level_replica": QUIET,
    "disable_tqdm": QUIET,
    "report_to": QUIET,
    "run_name": QUIET,
    "project": QUIET,
    "trackio_space_id": QUIET,
    "trackio_bucket_id": QUIET,
    "trackio_static_space_id": QUIET,
    "eval_strategy": QUIET,
    "eval_steps": QUIET,
    "eval_delay": QUIET,
    "per_device_eval_batch_size": QUIET,
    "prediction_loss_only": QUIET,
    "eval_on_start": QUIET,
    "eval_do_concat_batches": QUIET,
    "eval_use_gather_object": QUIET,
    "eval_accumulation_steps": QUIET,
    "include_for_metrics": QUIET,
    "batch_eval_metrics": QUIET,
    "save_only_model": Setting("honoured", "`sampler.pt` is not saved either"),
    "save_strategy": HONOURED,
    "save_steps": HONOURED,
    "save_on_each_node": HONOURED,
    "save_total_limit": HONOURED,
    "enable_jit_checkpoint": HONOURED,
    "push_to_hub": QUIET,
    "hub_token": QUIET,
    "hub_private_repo": QUIET,
    "hub_model_id": QUIET,
    "hub_strategy": QUIET,
    "hub_always_push": QUIET,
    "hub_revision": QUIET,
    "load_best_model_at_end": QUIET,
    "metric_for_best_model": QUIET,
    "greater_is_better": QUIET,
    "ignore_data_skip": Setting("honoured", "refused with a policy, which skips at no cost", _skip),
    "restore_callback_states_from_checkpoint": QUIET,
    "full_determinism": HONOURED,
    "seed": Setting("honoured", "also for random draws of the method"),
    "data_seed": Setting("honoured", "also for the sampler of a policy"),
    "use_cpu": HONOURED,
    "accelerator_config": Setting("honoured", "refused: `dispatch_batches` with a policy", _accelerator),
    "parallelism_config": _owned("parallelism_config"),
    "dataloader_drop_last": LOADER,
    "dataloader_num_workers": LOADER,
    "dataloader_pin_memory": LOADER,
    "dataloader_persistent_workers": LOADER,
    "dataloader_prefetch_factor": LOADER,
    "dataloader_multiprocessing_context": LOADER,
    "dataloader_in_order": Setting("honoured", "`False` is refused with a policy", _in_order),
    "remove_unused_columns": LOADER,
    "label_names": Setting("honoured", 'by rows they must include `"labels"`, unless you override `losses`'),
    "train_sampling_strategy": Setting("honoured", 'with a policy only `"random"`, because the policy draws', _batches),
    "length_column_name": Setting("honoured", "like `train_sampling_strategy`"),
    "ddp_find_unused_parameters": HONOURED,
    "ddp_bucket_cap_mb": HONOURED,
    "ddp_broadcast_buffers": HONOURED,
    "ddp_static_graph": Setting("refused", "a step has passes with and without averaging", _static),
    "ddp_backend": HONOURED,
    "ddp_timeout": HONOURED,
    "fsdp": _owned("fsdp"),
    "fsdp_config": Setting("not concerned", "without `fsdp` it does nothing"),
    "deepspeed": _owned("deepspeed"),
    "debug": QUIET,
    "skip_memory_metrics": QUIET,
    "do_train": QUIET,
    "do_eval": QUIET,
    "do_predict": QUIET,
    "resume_from_checkpoint": Setting("not concerned", "for scripts; `train(resume_from_checkpoint=...)` is honoured"),
    "local_rank": QUIET,
}
