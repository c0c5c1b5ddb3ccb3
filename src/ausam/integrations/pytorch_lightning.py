"""Lightning by its older name (``import pytorch_lightning``): the same as :mod:`ausam.integrations.lightning`.

Without selection you do not need this module: an ordinary LightningModule whose ``configure_optimizers`` returns
``SharpnessAware(base, SAM(rho=0.05), self)`` trains with the method.
"""

from __future__ import annotations

from typing import Any

from pytorch_lightning import Callback, LightningModule

from ausam.integrations import _lightning
from ausam.integrations._loader import SelectiveLoader
from ausam.optimizer.sharpness_aware import SharpnessAware

__all__ = ["SelectiveLoader", "SharpnessAwareModule"]


class SharpnessAwareModule(_lightning.Losses, LightningModule):
    """A LightningModule for methods and policies that need the loss of each sample.

    Define ``losses(batch)`` in place of ``training_step``: it returns per-sample losses, or ``(losses, outputs)``.
    ``on_train_batch_end`` finds the outputs of the pass at ``w`` in ``outputs["outputs"]``, for metrics.
    ``configure_optimizers`` returns ``SharpnessAware(base, method, self)``, with schedulers as Lightning takes them.
    With a policy, train on a :class:`SelectiveLoader`. Everything else is Lightning's: clipping, accumulation,
    precision, schedulers, checkpoints.
    """


class Companion(_lightning.Companion, Callback):
    """The callback that a trainer needs; added when the optimizer is created."""


def attach(opt: SharpnessAware, module: Any) -> None:
    """Prepare the trainer that is setting up this module."""
    _lightning.attach(opt, module, Companion)
