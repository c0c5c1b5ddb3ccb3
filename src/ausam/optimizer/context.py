"""StepContext: what the steps of an optimizer share."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from ausam.optimizer.buffers import BufferGuard
from ausam.optimizer.displacement import Swappable
from ausam.optimizer.parameters import TrainedParameters
from ausam.optimizer.sync import choose_sync


class StepContext:
    """How a model is read, moved, guarded and synchronised.

    Arguments:
        model: the model being trained.
        base: the optimizer whose parameters are trained.
        sync_perturbation: average the perturbation's gradient over processes too.
    """

    def __init__(self, model: nn.Module, base: Optimizer, sync_perturbation: bool) -> None:
        self.parameters = TrainedParameters(model, base)
        self.guard = BufferGuard()
        self.swappable = Swappable(model)
        first = model[0] if type(model) is nn.ModuleList and len(model) else model  # DDP's wrapper, of several modules
        self.sync = choose_sync(first, (p for g in base.param_groups for p in g["params"]), sync_perturbation)
