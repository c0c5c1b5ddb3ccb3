"""Inventory: what the model and the optimizer hold, looked up again only when that changes."""

from __future__ import annotations

import itertools

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ausam.tensors import Vector

# Wrappers put their own part into a parameter's name; without it the name is the same with and without them.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class Inventory:
    """The modules of a model, and which of its parameters belong to the optimizer.

    Walking a model costs more than anything else that a step of a small network adds to its passes. A flat look at
    the children and parameters of each known module tells whether the last walk still holds.

    Arguments:
        model: the model that is trained.
        base: the optimizer whose parameter groups are looked at.
    """

    def __init__(self, model: nn.Module, base: Optimizer) -> None:
        self.model = model
        self._base = base
        self.modules: list[nn.Module] = [model]
        self.lazy = False  # whether a lazy module waits for its first forward
        self._foreign: list[nn.Parameter] = []
        self._names: dict[nn.Parameter, str] = {}
        self._seen: list[object] = []
        self._signature: list[int] = []

    def refresh(self) -> None:
        """Walk the model if a module or parameter has come or gone since the last time."""
        seen = self._look()
        if list(map(id, seen)) == self._signature:
            return
        self.modules = list(self.model.modules())
        self.find_lazy()
        owned = {p for g in self._base.param_groups for p in g["params"]}
        self._foreign = [p for p in self.model.parameters() if p not in owned]
        self._names = {}
        self._seen = self._look()  # kept, so that no id is used a second time
        self._signature = list(map(id, self._seen))

    def find_lazy(self) -> None:
        """See whether a parameter or buffer is still to be made."""
        self.lazy = any(is_lazy(t) for t in itertools.chain(self.model.parameters(), self.model.buffers()))

    def _look(self) -> list[object]:
        seen: list[object] = [p for g in self._base.param_groups for p in g["params"]]
        for m in self.modules:
            seen += m._modules.values()
            seen += m._parameters.values()
        return seen

    def trained(self) -> list[nn.Parameter]:
        """The optimizer's parameters that require a gradient, each once."""
        params = [p for g in self._base.param_groups for p in g["params"] if p.requires_grad]
        return params if len(set(params)) == len(params) else list(dict.fromkeys(params))

    def foreign(self) -> list[nn.Parameter]:
        """Parameters of the model that another optimizer owns, as far as they require a gradient."""
        return [p for p in self._foreign if p.requires_grad]

    def names(self, params: list[nn.Parameter]) -> list[str]:
        """The model's name for each parameter, free of wrappers; empty for one that is not the model's."""
        if not self._names:
            self._names = {p: _bare(name) for name, p in self.model.named_parameters()}
        return [self._names.get(p, "") for p in params]

    def radii(self, rho: float) -> list[float] | None:
        """One radius per trained parameter, if a parameter group carries a ``rho`` of its own."""
        groups = self._base.param_groups
        if not any("rho" in g for g in groups):
            return None
        of = {p: float(g.get("rho", rho)) for g in reversed(groups) for p in g["params"]}
        return [of[p] for p in self.trained()]

    def momentum(self, params: list[nn.Parameter]) -> Vector:
        """The optimizer's first moment of each parameter; None where it has none yet."""
        states = [self._base.state.get(p, {}) for p in params]
        return [s.get("momentum_buffer", s.get("exp_avg")) for s in states]


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
