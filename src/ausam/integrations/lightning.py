"""Lightning: a module and a loader with any method and policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ausam.check import check
from ausam.integrations._batches import mean_loss
from ausam.integrations._loader import SelectiveLoader
from ausam.optimizer import SharpnessAware
from ausam.selection import SelectiveBatchSampler
from ausam.step import Method

__all__ = ["SelectiveLoader", "SharpnessAwareModule"]


class SharpnessAwareModule(LightningModule):
    """A LightningModule that trains with any method: write ``losses``, and wrap the optimizer.

    ``losses(batch)`` returns per-sample losses, or ``(losses, outputs)``; ``configure_optimizers`` makes its optimizer
    with ``self.sharpness_aware(SGD(self.parameters(), lr=0.1), SAM(rho=0.05))``, schedulers as ever. With a policy,
    train on a ``SelectiveLoader``. What Lightning leaves to modules of manual optimisation: set ``accumulate``,
    ``interval`` and ``monitor`` here, and clip in ``on_before_optimizer_step`` with ``self.clip_gradients``.
    """

    automatic_optimization = False
    accumulate = 1  # batches a step
    interval = "epoch"  # when schedulers step: every "epoch" or every "step"
    monitor = "train_loss"  # what ReduceLROnPlateau watches, every epoch after validation

    def losses(self, batch: Any) -> Any:
        """Per-sample losses of a batch, not reduced; or ``(losses, outputs)``."""
        raise NotImplementedError(f"Define losses(self, batch) in {type(self).__name__}; it returns one loss a sample.")

    def sharpness_aware(self, base: Optimizer, method: Method, **settings: Any) -> SharpnessAware:
        """``SharpnessAware(base, method, self, **settings)``, as Lightning can step it."""
        return _Stepped(base, method, self, **settings)

    def configure_callbacks(self) -> list[Callback]:
        """What restores the loader and steps the schedulers; add yours to it if you override this."""
        return [_Companion()]

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """One call of ``SharpnessAware.backward``, and a step of the optimizer when enough are accumulated."""
        handle, loader = self.optimizers(), self.trainer.train_dataloader
        opt: SharpnessAware = handle.optimizer
        opt.model = self.trainer.strategy.model  # as Lightning wrapped it
        batches = loader.batches if isinstance(loader, SelectiveLoader) else None
        index = weight = None
        if batches is not None:
            batch, index = batch
            weight = batches.selective.weight(index)
        back = lambda loss: self.manual_backward(loss / self.accumulate)  # noqa: E731
        feedback = opt.backward(self.losses, batch, index=index, weight=weight, backward=back)
        last = self.trainer.is_last_batch
        if batches is not None:
            batches.update(feedback)
            last = last or batches.done == batches.total
        if last or (batch_idx + 1) % self.accumulate == 0:
            handle.step()
            handle.zero_grad()
            _schedule(self, "step")
        if last:
            _schedule(self, "epoch")
        loss = mean_loss(feedback)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(feedback.loss))
        return {"loss": loss}


class _Stepped(SharpnessAware):
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Lightning always brings a closure, which only runs hooks: the gradient is there already."""
        if closure is not None:
            closure()
        return super().step()


class _Companion(Callback):
    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        del trainer, module
        fit = checkpoint.get("loops", {}).get("fit_loop", {})
        self.states = fit.get("state_dict", {}).get("combined_loader", [])

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        del module
        if stage == "fit":
            # Where every loader passes, also one from a hook, before Lightning builds its sampler anew.
            connector = trainer._data_connector
            connector._prepare_dataloader = partial(_accepted, connector)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        del module
        loader, made = trainer.train_dataloader, trainer.optimizers
        if len(made) != 1 or not isinstance(made[0], _Stepped):
            raise TypeError(
                f"configure_optimizers made {', '.join(type(o).__name__ for o in made)}, but one optimizer from "
                "self.sharpness_aware(base, method) is needed."
            )
        if isinstance(loader, SelectiveLoader):
            check(made[0].method, loader.batches.selective.policy)
            # Lightning restores loaders in the middle of an epoch, but not at its end, where the scores count too.
            for state in self.states:
                loader.load_state_dict(state)
            self.states = []

    def on_train_epoch_end(self, trainer: Trainer, module: SharpnessAwareModule) -> None:
        del trainer
        _schedule(module, "metric")


def _accepted(connector: Any, loader: Any, **how: Any) -> Any:
    """The loader as Lightning prepares it, if it is not a DataLoader with our sampler."""
    if isinstance(getattr(loader, "batch_sampler", None), SelectiveBatchSampler):
        raise TypeError(
            "The DataLoader has a SelectiveBatchSampler, which Lightning does not save, and replaces where there are "
            "several devices. Train on SelectiveLoader(dataset, sampler) from ausam.integrations.lightning."
        )
    return type(connector)._prepare_dataloader(connector, loader, **how)


def _schedule(module: SharpnessAwareModule, now: str) -> None:
    """Step the schedulers whose time it is: a "step", an "epoch", or the "metric" of an epoch."""
    for config in module.trainer.lr_scheduler_configs:
        watches = isinstance(config.scheduler, ReduceLROnPlateau)
        if now == ("metric" if watches else module.interval):
            metric = module.trainer.callback_metrics[module.monitor] if watches else None
            module.lr_scheduler_step(config.scheduler, metric)
