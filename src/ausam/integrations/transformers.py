"""Hugging Face Transformers: a Trainer with any method and policy."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback

from ausam.audit import Audit
from ausam.feedback import Feedback
from ausam.integrations._batches import INDEX, Batches, Numbered, Placeholders, collate_dict, mean_loss
from ausam.integrations._sequences import per_sample, shifts
from ausam.integrations.accelerate import DISPATCHED, OWNED, STATIC_GRAPH, UNORDERED, Refusal, prepare_loader, refuse
from ausam.integrations.accelerate import REFUSED as ACCELERATOR_REFUSED
from ausam.optimizer.sharpness_aware import SharpnessAware
from ausam.optimizer.step import Method
from ausam.pairing import check
from ausam.policies import Policy
from ausam.sampler import SelectiveBatchSampler

STATE = "sampler.pt"
FIGURES = ("_metrics", "_stored_metrics", "_total_train_tokens")  # what TRL's trainers log: added to in compute_loss

# TrainingArguments that cannot be honoured: the name, the test of its value, and the reason and the remedy.
REFUSED: tuple[Refusal, ...] = (
    *((name, bool, OWNED) for name in ("parallelism_config", "fsdp", "deepspeed")),
    (
        "optim",
        lambda optim: re.search("lomo|layerwise", str(getattr(optim, "value", optim))),
        "it steps inside backward, which runs several times per step. Use another, such as adamw_torch.",
    ),
    ("ddp_static_graph", bool, STATIC_GRAPH),
)
REFUSED_WITH_POLICY: tuple[Refusal, ...] = (
    (
        "train_sampling_strategy",
        lambda strategy: strategy != "random",
        'it orders the samples, but the policy\'s sampler draws them. Leave it at "random", or leave out the policy.',
    ),
    ("dataloader_in_order", lambda in_order: not in_order, UNORDERED),
    (
        "ignore_data_skip",
        bool,
        "it would restart the epoch, but the sampler continues where it stopped and skips at no cost. Leave it False.",
    ),
    ("accelerator_config", lambda config: getattr(config, "dispatch_batches", None), f"dispatch_batches: {DISPATCHED}"),
)
REFUSED_BY_ROWS: tuple[Refusal, ...] = (
    (
        "use_liger_kernel",
        bool,
        "its fused loss computes no logits, and without them there is no loss per sample. Leave it False, or override "
        "losses(model, inputs).",
    ),
)


class AuditCallback(TrainerCallback):
    """Feed an :class:`ausam.audit.Audit`: ``SharpnessAwareTrainer(..., callbacks=[AuditCallback(audit)])``.

    It needs a policy, because only then are the dataset indices known. ``Full()`` uses all samples. The audit is shared
    among the processes and saved in the Trainer's checkpoints. The plain Trainer does not feed it.

    Arguments:
        audit: ``Audit(len(dataset), labels)``.
    """

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Share the epoch among the processes."""
        self.audit.exchange()


class SharpnessAwareTrainer(Trainer):
    """The Trainer with any method and policy. Mix with others: ``class Mine(SharpnessAwareTrainer, Seq2SeqTrainer)``.

    ``SharpnessAwareTrainer(model, args, train_dataset=data, method=SAM(rho=0.05), policy=AUSampling(alpha=0.5))``

    Arguments, in addition to the Trainer's:
        method: ``SAM(rho)``, ``Plain()``, .... None if ``optimizers`` already contains a ``SharpnessAware``.
        policy: chooses the samples of every batch before loading: ``AUSampling(alpha)``, .... If None, all samples.
        settings: further arguments of ``SharpnessAware``, e.g. ``{"replay": True}`` for equal dropout masks.
        on_feedback: called with the :class:`ausam.Feedback` of every batch, e.g. to keep the losses of each sample. It
            needs a policy, because only then are the dataset indices known. ``Full()`` uses all samples.

    Without a policy, each pass of the method runs the Trainer's own ``training_step``. ``compute_loss``,
    ``compute_loss_func``, label smoothing and the average over tokens then behave as in the Trainer. A policy, and
    methods such as ESAM, KSAM and SAF, need the loss of each sample. The loss of a step is then the mean over
    sequences, and that of a sequence the mean over its labelled tokens. With ``gradient_accumulation_steps`` each batch
    counts the same. Override ``losses`` to change that. ``sampler.pt`` in a checkpoint holds the scores and the
    position in the epoch. A policy that chooses for a whole epoch (``InfoBatch``) makes later epochs shorter, but the
    Trainer's schedule assumes the length of the first. TrainingArguments that cannot be honoured raise an error: see
    docs/frameworks.md.
    """

    optimizer: Any
    sharpness_aware: SharpnessAware | None
    batches: Batches | None

    def __init__(
        self,
        *args: Any,
        method: Method | None = None,
        policy: Policy | None = None,
        settings: Mapping[str, Any] | None = None,
        on_feedback: Callable[[Feedback], Any] | None = None,
        **kw: Any,
    ) -> None:
        super().__init__(*args, **kw)
        self.method: Method = _one_method(self.optimizer, method, settings)
        self.policy, self.settings, self.on_feedback = policy, dict(settings or {}), on_feedback
        self.sharpness_aware = self.optimizer if isinstance(self.optimizer, SharpnessAware) else None
        self.batches = None
        own_losses = type(self).losses is not SharpnessAwareTrainer.losses
        self.by_rows = policy is not None or own_losses or getattr(self.method, "needs_rows", False)
        refuse(ACCELERATOR_REFUSED, self.accelerator)
        refuse(REFUSED, self.args)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"This process sees {self.args.n_gpu} GPUs and would run DataParallel, whose replicas a method cannot "
                "perturb. Start one process per GPU with torchrun, or make one visible: CUDA_VISIBLE_DEVICES=0."
            )
        if self.by_rows and not own_losses:
            self._require_losses()
        if policy is not None:
            self._require_choice(policy)

    def _require_losses(self) -> None:
        """Raise for settings under which :meth:`losses` would not compute the loss that the user means."""
        refuse(REFUSED_BY_ROWS, self.args)
        who = type(self.policy if self.policy is not None else self.method).__name__
        if self.compute_loss_func is not None:
            raise TypeError(
                f"compute_loss_func returns one loss per batch, but {who} needs one per sample. "
                "Override losses(model, inputs)."
            )
        owner = next(cls for cls in type(self).__mro__ if "compute_loss" in vars(cls))
        if owner.__module__.partition(".")[0] != "transformers":
            raise TypeError(
                f"{owner.__name__} overrides compute_loss, which returns one loss per batch, but {who} needs one per "
                "sample. Override losses(model, inputs) as well: training uses losses, evaluation uses compute_loss."
            )
        if "labels" not in self.label_names:
            raise ValueError(
                f"The labels of this model are {', '.join(self.label_names) or 'unknown'}, and losses per sample are "
                "computed from labels. Override losses(model, inputs)."
            )

    def _require_choice(self, policy: Policy) -> None:
        """Raise for settings under which the policy could not choose the samples."""
        check(self.method, policy)
        refuse(REFUSED_WITH_POLICY, self.args)
        if isinstance(self.train_dataset, IterableDataset):
            raise TypeError(
                f"{type(self.train_dataset).__name__} is a stream, from which the Trainer cannot choose. Leave out the "
                "policy, or train in your own loop with ausam.SelectiveStream, which chooses before decoding."
            )
        if getattr(policy, "scope", "batch") == "epoch" and self.args.gradient_accumulation_steps > 1:
            raise ValueError(
                f"With {type(policy).__name__} the number of batches changes from epoch to epoch, which the Trainer's "
                "gradient accumulation does not support. Use gradient_accumulation_steps=1, or another policy."
            )

    def losses(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Per-sample losses and logits, for classification, regression and language modelling."""
        if "labels" not in inputs:
            raise ValueError(f"The batch has no labels, only {', '.join(inputs)}. Override losses(model, inputs).")
        config = getattr(self.model, "config", None)
        # An encoder-decoder derives the decoder's input from the labels; other models would compute an unused loss.
        whole = getattr(config, "is_encoder_decoder", False)
        outputs = model(**{k: v for k, v in inputs.items() if whole or k != "labels"})
        if "logits" not in outputs:
            raise ValueError(f"The model has no logits, only {', '.join(outputs)}. Override losses(model, inputs).")
        task = shifts(self.model), self.args.label_smoothing_factor, getattr(config, "problem_type", None)
        return per_sample(outputs["logits"], inputs["labels"], *task), outputs["logits"]

    def call_model_init(self, trial: Any = None) -> Any:
        """Start a new model, with no scores and no optimizer."""
        self.batches = self.sharpness_aware = None
        return super().call_model_init(trial)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """The Trainer's optimizer, wrapped once."""
        base = super().create_optimizer(model)
        if self.sharpness_aware is None or getattr(base, "optimizer", base) is not self.sharpness_aware:
            settings = {"seed": self.args.seed, **self.settings}
            trained = self.model if model is None else model
            self.optimizer = self.sharpness_aware = SharpnessAware(base, self.method, trained, **settings)
        # Accelerate may wrap it, because training_step uses the optimizer inside the wrapper.
        vars(self.sharpness_aware)["_is_accelerate_prepared"] = False
        return self.optimizer

    def get_train_dataloader(self) -> Any:
        """The Trainer's own loader. With a policy, a loader of the batches that it chose."""
        theirs = super().get_train_dataloader()
        if self.policy is None:
            if self.on_feedback is not None or self._audits():
                raise TypeError(
                    "on_feedback and AuditCallback need the loss and the dataset index of each sample, and without a "
                    "policy there are none. Pass policy=Full() to train on all samples."
                )
            return theirs
        args, size, data = self.args, self._train_batch_size, Numbered(theirs.dataset)
        if self.batches is None or not self.batches.fits(size, len(data)):
            seed = args.seed if args.data_seed is None else args.data_seed
            split = bool(self.accelerator.split_batches)
            options: dict[str, Any] = {"drop_last": args.dataloader_drop_last, "seed": seed, "split": split}
            self.batches = Placeholders(SelectiveBatchSampler(data, size, self.policy, **options))
        self.batches.selective.set_total_epochs(_epochs(args, len(self.batches)))
        collate = partial(collate_dict, theirs.collate_fn)
        return prepare_loader(self.accelerator, theirs, self.batches, dataset=data, collate_fn=collate)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """All passes of the method in place of one forward and backward."""
        opt = self.sharpness_aware
        if opt is None:
            raise RuntimeError(
                f"{type(self).__name__} overrides create_optimizer without calling super().create_optimizer(), so no "
                "method is in use. Pass the optimizer instead: optimizers=(base, None)."
            )
        opt.model = model  # as wrapped by the accelerator
        parts = self.current_gradient_accumulation_steps
        if self.by_rows:
            return self._step_by_rows(opt, model, inputs, parts)
        scaler = self.accelerator.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        step = super().training_step
        figures: dict[str, Any] = {}  # of the first pass

        def one_pass() -> Any:
            loss = step(model, inputs, num_items_in_batch)
            if not figures:
                figures.update({name: vars(self)[name] for name in FIGURES if name in vars(self)})
            self.__dict__.update(copy.deepcopy(figures))
            return loss

        loss: Tensor = opt.accumulate(one_pass, scale=scale / parts)
        return loss

    def _step_by_rows(self, opt: SharpnessAware, model: nn.Module, inputs: dict[str, Any], parts: int) -> Tensor:
        model.train()
        if callable(getattr(self.optimizer, "train", None)):  # schedule-free optimizers
            self.optimizer.train()
        index = inputs.pop(INDEX, None)

        def losses(batch: dict[str, Any]) -> Any:
            with self.compute_loss_context_manager():
                return self.losses(model, dict(batch))

        feedback = opt.backward(
            losses,
            dict(self._prepare_inputs(inputs)),
            index=index,
            weight=None if self.batches is None else self.batches.selective.weight(index),
            backward=lambda loss: self.accelerator.backward(loss / parts),
        )
        if self.batches is not None:
            self.batches.update(feedback)
        if self.on_feedback is not None:
            self.on_feedback(feedback)
        for audit in self._audits():
            audit.update(feedback)
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0:
            clear_device_cache()
        shown: Tensor = mean_loss(feedback) / parts
        return shown

    def _audits(self) -> list[Audit]:
        return [c.audit for c in self.callback_handler.callbacks if isinstance(c, AuditCallback)]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.batches is None:
            return
        for audit in self._audits():
            audit.exchange()
        # In every process: they exchange their scores.
        state = {**self.batches.state_dict(), "audits": [audit.state_dict() for audit in self._audits()]}
        if self.args.should_save:
            torch.save(state, Path(output_dir) / STATE)

    def _init_training_state(self, *args: Any) -> tuple[int, int]:
        begun: tuple[int, int] = super()._init_training_state(*args)
        if self.batches is None:
            return begun
        folder = args[3]  # to resume from
        if folder is None or not (Path(folder) / STATE).is_file():
            self.batches.selective.set_epoch(begun[0])
            return begun
        state = torch.load(Path(folder) / STATE, map_location="cpu", weights_only=True)
        self.batches.load_state_dict(state)
        audits, saved = self._audits(), state.get("audits")
        if audits and saved:  # an audit that is new in this run starts empty
            for audit, of_audit in zip(audits, saved, strict=True):
                audit.load_state_dict(of_audit)
        return self.batches.selective.epoch, self.batches.resumed


def _epochs(args: Any, batches: int) -> int:
    """The number of epochs that the Trainer will run with this many batches each."""
    passes: float = args.num_train_epochs
    if args.max_steps > 0:
        passes = args.max_steps * args.gradient_accumulation_steps / batches
    return max(1, ceil(passes))


def _one_method(given: Any, method: Method | None, settings: Mapping[str, Any] | None) -> Method:
    """The method, from the argument or from a SharpnessAware optimizer passed by the user."""
    if isinstance(given, SharpnessAware):
        if method is not None or settings is not None:
            raise TypeError(
                "optimizers contains a SharpnessAware, and method or settings are given too. Pass the plain optimizer "
                "with them, or the SharpnessAware without."
            )
        return given.method
    if method is None:
        raise TypeError("SharpnessAwareTrainer needs a method, e.g. method=SAM(rho=0.05).")
    return method
