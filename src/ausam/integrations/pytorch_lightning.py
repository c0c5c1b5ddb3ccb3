"""Lightning by its older name (``import pytorch_lightning``): the classes of :mod:`ausam.integrations.lightning`."""

from __future__ import annotations

from pytorch_lightning import Callback, LightningModule

from ausam.integrations._batches import SelectiveLoader
from ausam.integrations._lightning import Attachment, Auditing, Losses

__all__ = ["AuditCallback", "SelectiveLoader", "SharpnessAwareCallback", "SharpnessAwareModule"]


class SharpnessAwareCallback(Attachment, Callback):
    """:class:`ausam.integrations.lightning.SharpnessAwareCallback` for this package."""


class AuditCallback(Auditing, Callback):
    """:class:`ausam.integrations.lightning.AuditCallback` for this package."""


class SharpnessAwareModule(Losses, LightningModule):
    """:class:`ausam.integrations.lightning.SharpnessAwareModule` for this package."""

    callback = SharpnessAwareCallback
