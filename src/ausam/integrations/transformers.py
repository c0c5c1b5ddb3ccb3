"""Hugging Face Transformers: a Trainer with any method and policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer

from ausam.check import check
from ausam.integrations._batches import INDEX, Batches, Numbered, NumberedCollator, Placeholders, mean_loss
from ausam.integrations._sequences import per_sample, shifts
from ausam.integrations.accelerate import prepare_loader, refuse
from ausam.optimizer import SharpnessAware
from ausam.selection import Policy, SelectiveBatchSampler
from ausam.step import Method

STATE = "sampler.pt"


class SharpnessAwareTrainer(Trainer):
    """The Trainer with any method and policy; with another: ``class Mine(SharpnessAwareTrainer, Seq2SeqTrainer)``.

    ``SharpnessAwareTrainer(model, args, train_dataset=data, method=SAM(rho=0.05), policy=AUSampling(alpha=0.5))``

    Arguments, beside the Trainer's own:
        method: ``SAM(rho)``, ``Plain()``, ...
        policy: what is left out of every batch before it is loaded: ``AUSampling(alpha)``, ...; None: nothing.
        settings: further arguments of ``SharpnessAware``, e.g. ``{"replay": True}`` for equal dropout masks.

    The loss of a step is the mean over sequences, each the mean over its tokens with a label; override ``losses`` for
    another. With ``gradient_accumulation_steps`` each batch counts the same. ``sampler.pt`` in a checkpoint holds the
    scores and the position in the epoch. A policy that chooses for a whole epoch (``InfoBatch``) makes later epochs
    shorter; the Trainer's schedule still counts the first.
    """

    def __init__(
        self,
        *args: Any,
        method: Method,
        policy: Policy | None = None,
        settings: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> None:
        if policy is not None:
            check(method, policy)
        super().__init__(*args, **kw)
        self.method, self.policy, self.settings = method, policy, dict(settings or {})
        self.sharpness_aware: SharpnessAware | None = None
        self.batches: Batches | None = None
        if self.compute_loss_func is not None:
            raise TypeError(
                "compute_loss_func makes one loss a batch, not one a sample. Override losses(model, inputs)."
            )
        refuse(self.accelerator)
        if getattr(policy, "scope", "batch") == "epoch" and self.args.gradient_accumulation_steps > 1:
            raise ValueError(
                f"{type(policy).__name__} changes the number of batches from epoch to epoch, which the Trainer's "
                "gradient accumulation does not expect. Use gradient_accumulation_steps=1, or another policy."
            )

    def losses(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Per-sample losses and logits, for classification, regression and language modelling."""
        if "labels" not in inputs:
            raise ValueError(f"The batch has no labels, only {', '.join(inputs)}. Override losses(model, inputs).")
        config = getattr(self.model, "config", None)
        # An encoder-decoder makes the decoder's input of the labels; others would compute a loss that nobody uses.
        whole = getattr(config, "is_encoder_decoder", False)
        outputs = model(**{k: v for k, v in inputs.items() if whole or k != "labels"})
        if "logits" not in outputs:
            raise ValueError(f"The model has no logits, only {', '.join(outputs)}. Override losses(model, inputs).")
        task = shifts(self.model), self.args.label_smoothing_factor, getattr(config, "problem_type", None)
        return per_sample(outputs["logits"], inputs["labels"], *task), outputs["logits"]

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """The Trainer's optimizer, wrapped once."""
        base = super().create_optimizer(model)
        if self.sharpness_aware is None or getattr(base, "optimizer", base) is not self.sharpness_aware:
            settings = {"seed": self.args.seed, **self.settings}
            trained = self.model if model is None else model
            self.optimizer = self.sharpness_aware = SharpnessAware(base, self.method, trained, **settings)
        return self.optimizer

    def get_train_dataloader(self) -> Any:
        """The Trainer's own without a policy; with one, the batches that it chose."""
        if self.policy is None:
            return super().get_train_dataloader()
        args, size, given = self.args, self._train_batch_size, self.train_dataset
        data = Numbered(self._remove_unused_columns(given) if hasattr(given, "remove_columns") else given)
        if self.batches is None or not self.batches.fits(size, len(data)):
            seed = args.seed if args.data_seed is None else args.data_seed
            options: dict[str, Any] = {"drop_last": args.dataloader_drop_last, "seed": seed}
            self.batches = Placeholders(SelectiveBatchSampler(data, size, self.policy, **options))
        collate = self._get_collator_with_removed_columns(self.data_collator, description="Training")
        loader = DataLoader(
            data,
            collate_fn=NumberedCollator(collate),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        return prepare_loader(self.accelerator, loader, self.batches)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One call of ``SharpnessAware.backward`` in place of one forward and backward."""
        del num_items_in_batch  # sequences count, not tokens
        opt = self.sharpness_aware
        assert opt is not None  # noqa: S101  (create_optimizer comes before the first step)
        model.train()
        opt.model = model  # as the accelerator wrapped it
        index = inputs.pop(INDEX, None)
        parts = self.current_gradient_accumulation_steps
        feedback = opt.backward(
            lambda batch: self.losses(model, batch),
            dict(self._prepare_inputs(inputs)),
            index=index,
            weight=None if self.batches is None else self.batches.selective.weight(index),
            backward=lambda loss: self.accelerator.backward(loss / parts),
        )
        if self.batches is not None:
            self.batches.update(feedback)
        shown: Tensor = mean_loss(feedback) / parts
        return shown

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.batches is not None:
            state = self.batches.state_dict()  # in every process: they exchange their scores
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
        self.batches.load_state_dict(torch.load(Path(folder) / STATE, map_location="cpu", weights_only=True))
        if self.args.ignore_data_skip:
            self.batches.resumed = 0
        return self.batches.selective.epoch, self.batches.resumed
