"""Shared by the two Lightning packages: the module with per-sample losses, and the callbacks that attach it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ausam.audit import Audit
from ausam.integrations._batches import SelectiveLoader
from ausam.integrations._lightning_closure import BatchClosure, RowsClosure
from ausam.optimizer.errors import Reduction
from ausam.optimizer.sharpness_aware import SharpnessAware
from ausam.pairing import check
from ausam.sampler import SelectiveBatchSampler, SelectiveStream

# Strategies that own the parameters, the step or both.
REFUSED = ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy", "SingleDeviceXLAStrategy", "XLAStrategy")


class Losses:
    """What a SharpnessAwareModule is, in either package."""

    trainer: Any
    automatic_optimization: bool
    callback: type[Any]  # the SharpnessAwareCallback of the package
    reduce: Reduction = "mean"

    def losses(self, batch: Any) -> Any:
        """The per-sample losses of a batch, not reduced. Or ``(losses, outputs)``."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define losses(self, batch). Define it, and return one loss per sample."
        )

    def training_step(self, batch: Any) -> dict[str, Any]:
        """Called by Lightning's loop, in the contexts of the strategy and the precision. Do not override it."""
        return {"loss": torch.zeros(()), "losses": self.losses(batch)}  # the loop requires a loss, but does not use it

    def configure_callbacks(self) -> list[Any]:
        """The callback that attaches the optimizer. If you override this, add to ``super().configure_callbacks()``."""
        attached = any(isinstance(callback, Attachment) for callback in self.trainer.callbacks)
        return [] if attached else [self.callback()]


class Attachment:
    """What a SharpnessAwareCallback does, in either package: attach every SharpnessAware to the trainer for one fit."""

    _step_hooks: Sequence[Any] = ()
    _sampler: SelectiveBatchSampler | None = None  # of the loader, once there is one

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Let the trainer ask us for closures and show us loaders. No strategy may own the parameters."""
        if stage != "fit":
            return
        kinds = {cls.__name__ for cls in type(trainer.strategy).__mro__}
        if kinds.intersection(REFUSED):
            raise ValueError(
                f"Lightning runs {type(trainer.strategy).__name__}, which owns the parameters or the step, so the "
                "weights cannot be perturbed in between. Use one device or strategy='ddp'."
            )
        loop, connector = trainer.fit_loop.epoch_loop.automatic_optimization, trainer._data_connector
        loop._make_closure = partial(self._make_closure, loop, module)
        # Every loader passes here, also one from a hook, before Lightning rebuilds its sampler.
        connector._prepare_dataloader = partial(self._prepare_dataloader, connector)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Attach the optimizers."""
        self._detach_optimizers()
        self._attach_optimizers(trainer, module)

    def _attach_optimizers(self, trainer: Any, module: Any) -> None:
        """Give each optimizer the model as wrapped by the strategy."""
        _refuse_module(module, trainer.optimizers)
        ours = [opt for opt in trainer.optimizers if isinstance(opt, SharpnessAware)]
        self._step_hooks = [opt.register_step_pre_hook(_run_closure) for opt in ours]
        for opt in ours:
            opt.model = trainer.model
        wrappers = module.optimizers()
        for wrapper in wrappers if isinstance(wrappers, list) else [wrappers]:
            if isinstance(wrapper.optimizer, SharpnessAware):
                # Lightning's wrapper inherits our methods and would keep the attributes that they set.
                for name in ("backward", "accumulate", "load_state_dict"):
                    setattr(wrapper, name, getattr(wrapper.optimizer, name))

    def _make_closure(self, loop: Any, module: Any, kwargs: Any, opt: Any, batch_idx: int) -> Any:
        """In place of the loop's method: the closure of a batch, ours if the optimizer is."""
        if not isinstance(opt, SharpnessAware):
            return type(loop)._make_closure(loop, kwargs, opt, batch_idx)
        trainer = loop.trainer
        if self not in trainer.callbacks:  # Lightning's tuner has put its own in their place
            if selective_loader(trainer) is not None:
                raise TypeError(
                    "Lightning's tuner does not restore the sampler of a SelectiveLoader after its search. Search on "
                    "an ordinary loader: Tuner(trainer).lr_find(module, DataLoader(dataset, batch_size))."
                )
            if not self._step_hooks:
                self._attach_optimizers(trainer, module)
        kind = RowsClosure if isinstance(module, Losses) else BatchClosure
        return kind(loop, opt, kwargs, batch_idx)

    def _prepare_dataloader(self, connector: Any, loader: Any, **how: Any) -> Any:
        """In place of the connector's method: raise an error for a loader of ours that nothing would update."""
        automatic = connector.trainer.lightning_module.automatic_optimization
        if automatic and isinstance(loader, SelectiveStream):
            raise TypeError(
                "Lightning's loop does not update a SelectiveStream. Call stream.update yourself, in a module with "
                "automatic_optimization=False or in your own loop."
            )
        if automatic and isinstance(getattr(loader, "batch_sampler", None), SelectiveBatchSampler):
            raise TypeError(
                "The DataLoader has a SelectiveBatchSampler, which Lightning does not save, and replaces when there "
                "are several devices. Use SelectiveLoader(dataset, sampler) from ausam.integrations.lightning."
            )
        if isinstance(loader, SelectiveLoader):
            if self._sampler not in (None, loader.batches.selective):
                raise RuntimeError(
                    "train_dataloader created another SelectiveBatchSampler, so the scores of the first are lost. "
                    "Create the sampler once, e.g. in __init__, and only the SelectiveLoader in train_dataloader."
                )
            self._sampler = loader.batches.selective
        return type(connector)._prepare_dataloader(connector, loader, **how)

    def teardown(self, trainer: Any, module: Any, stage: Any = None) -> None:
        """Leave the trainer and the optimizers as they were."""
        del module, stage
        self._detach_optimizers()
        self._sampler = None
        vars(trainer.fit_loop.epoch_loop.automatic_optimization).pop("_make_closure", None)
        vars(trainer._data_connector).pop("_prepare_dataloader", None)

    on_exception = teardown

    def _detach_optimizers(self) -> None:
        for hook in self._step_hooks:
            hook.remove()
        self._step_hooks = ()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Raise an error for settings that the loader cannot honour, and restore its scores."""
        loader = selective_loader(trainer)
        if loader is None:
            return
        if not isinstance(module, Losses):
            raise TypeError(
                f"SelectiveLoader needs the loss of each sample, which {type(module).__name__}.training_step does not "
                "return. Derive from SharpnessAwareModule, and define losses(batch) in place of training_step."
            )
        policy = loader.batches.selective.policy
        check(trainer.optimizers[0].method, policy)
        if trainer.overfit_batches:
            raise ValueError(
                "Trainer(overfit_batches=...) repeats the first batches, but SelectiveLoader draws new ones each "
                "epoch. To overfit a few samples, use a dataset of these: Subset(dataset, range(n))."
            )
        if getattr(policy, "scope", "batch") == "epoch" and trainer.reload_dataloaders_every_n_epochs != 1:
            raise ValueError(
                f"With {type(policy).__name__} the number of batches changes from epoch to epoch, but Lightning counts "
                "them once and would not validate after a shorter epoch. Use "
                "Trainer(reload_dataloaders_every_n_epochs=1)."
            )
        if (epochs := _epochs(trainer, len(loader))) is not None:
            loader.batches.selective.set_total_epochs(epochs)
        # Lightning restores loaders in the middle of an epoch, but not at its end, where the scores matter too.
        for state in trainer.fit_loop._combined_loader_states_to_load:
            loader.load_state_dict(state)
        trainer.fit_loop._combined_loader_states_to_load = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the mean loss of the batch."""
        del trainer, batch, batch_idx
        if isinstance(outputs, dict) and "train_loss" in outputs:
            shown = {"prog_bar": True, "batch_size": outputs["samples"]}
            module.log("train_loss", outputs["train_loss"], on_step=True, on_epoch=False, **shown)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Exchange the scores, because the length of the next epoch may depend on them. Every process is here."""
        del module
        loader = selective_loader(trainer)
        if loader is not None:
            loader.batches.selective.exchange()


def _epochs(trainer: Any, batches: int) -> int | None:
    """The number of epochs that the trainer will run with this many batches each. None if only time limits it."""
    limits = []
    if (trainer.max_epochs or -1) > 0:
        limits.append(trainer.max_epochs)
    if trainer.max_steps > 0:
        limits.append(ceil(trainer.max_steps * trainer.accumulate_grad_batches / batches))
    return min(limits) if limits else None


class Auditing:
    """What an AuditCallback does, in either package: feed an audit, and save it with Lightning's checkpoints."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Raise an error for a training whose batches have no losses or no indices of single samples."""
        if not isinstance(module, Losses) or selective_loader(trainer) is None:
            raise TypeError(
                "AuditCallback needs the loss and the dataset index of each sample. Derive the module from "
                "SharpnessAwareModule, and train on a SelectiveLoader; the policy Full() uses all samples."
            )

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the feedback of the batch."""
        del trainer, module, batch, batch_idx
        if isinstance(outputs, dict) and "feedback" in outputs:  # StochasticWeightAveraging has passes without
            self.audit.update(outputs["feedback"])

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Share the epoch among the processes. Every process is here."""
        del trainer, module
        self.audit.exchange()

    def state_dict(self) -> dict[str, Any]:
        """The audit as Lightning saves it. Every process is here."""
        self.audit.exchange()
        return self.audit.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the audit of a checkpoint."""
        self.audit.load_state_dict(state)


def selective_loader(trainer: Any) -> SelectiveLoader | None:
    """The training loader, if it selects samples. A TypeError if it is one of several."""
    loaders = trainer.train_dataloader
    if isinstance(loaders, SelectiveLoader):
        return loaders
    if any(isinstance(loader, SelectiveLoader) for loader in tree_leaves(loaders)):
        raise TypeError(
            "A SelectiveLoader is one of several training loaders, but a step can only credit the losses of one. "
            "Use it as the only training loader."
        )
    return None


def _refuse_module(module: Any, optimizers: Sequence[Any]) -> None:
    """Raise a TypeError for a module that does not go with its optimizers."""
    name, automatic, by_rows = type(module).__name__, module.automatic_optimization, isinstance(module, Losses)
    if by_rows and not isinstance(optimizers[0], SharpnessAware):
        raise TypeError(
            f"configure_optimizers returned {type(optimizers[0]).__name__}. Return SharpnessAware(base, method, self)."
        )
    if by_rows and type(module).training_step is not Losses.training_step:
        raise TypeError(
            f"{name} defines training_step, but a SharpnessAwareModule runs losses(batch) instead. Rename it to losses "
            "and return one loss per sample, or derive from LightningModule, where training_step works unchanged."
        )
    if by_rows and not automatic:
        raise TypeError(
            f"{name} sets automatic_optimization=False, but in a SharpnessAwareModule Lightning takes the step. "
            "Remove it, or derive from LightningModule and call opt.backward yourself."
        )
    for opt in optimizers:
        if not automatic or by_rows or not isinstance(opt, SharpnessAware):
            continue
        if getattr(opt.method, "needs_rows", False):
            raise TypeError(
                f"{type(opt.method).__name__} needs the loss of each sample, which {name}.training_step does not "
                "return. Derive from SharpnessAwareModule, and define losses(batch) in place of training_step."
            )


def _run_closure(opt: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[None], dict[str, Any]]:
    """A hook before the step: the closure runs once and leaves the final gradient, clipped if configured."""
    del opt
    (closure,) = arguments
    if closure is not None:
        closure()
    return (None,), named
