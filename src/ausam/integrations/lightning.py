"""Lightning (``import lightning``): any method, and any policy with :class:`SelectiveLoader`."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule

from ausam.integrations._batches import SelectiveLoader
from ausam.integrations._lightning import Attachment, Auditing, Losses

__all__ = ["AuditCallback", "SelectiveLoader", "SharpnessAwareCallback", "SharpnessAwareModule"]


class SharpnessAwareCallback(Attachment, Callback):
    """Lets a trainer run every pass of the method: ``Trainer(callbacks=[SharpnessAwareCallback()])``.

    Needed by an ordinary LightningModule whose ``configure_optimizers`` returns a ``SharpnessAware``. ``training_step``
    then runs once per pass. Clipping, accumulation, precision, schedulers and hooks are Lightning's own, and see the
    final gradient. Without it the first step raises an error. A :class:`SharpnessAwareModule` brings its own.
    """


class AuditCallback(Auditing, Callback):
    """Feed an :class:`ausam.audit.Audit`: ``Trainer(callbacks=[AuditCallback(audit)])``.

    The module is a :class:`SharpnessAwareModule` and the loader a :class:`SelectiveLoader`. The policy ``Full()`` uses
    all samples. The audit is shared among the processes and saved with Lightning's checkpoints.

    Arguments:
        audit: ``Audit(len(dataset), labels)``.
    """


class SharpnessAwareModule(Losses, LightningModule):
    """A LightningModule for methods and policies that need the loss of each sample.

    Define ``losses(batch)`` in place of ``training_step``: it returns per-sample losses, or ``(losses, outputs)``.
    ``configure_optimizers`` returns ``SharpnessAware(base, method, self)``, with schedulers as Lightning takes them.
    Set ``reduce = "sum"`` in the class if your loss was a sum over the batch.
    With a policy, train on a :class:`SelectiveLoader`. The module brings its own :class:`SharpnessAwareCallback`.
    Everything else is Lightning's: clipping, accumulation, precision, schedulers, checkpoints.

    ``on_train_batch_end`` finds the outputs of the pass at ``w`` in ``outputs["outputs"]``, for metrics, and the
    :class:`ausam.Feedback` of the batch in ``outputs["feedback"]``.
    """

    callback = SharpnessAwareCallback
