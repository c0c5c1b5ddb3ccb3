"""TrainedParameters: what the model and the optimizer hold, looked up again only when that changes."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ausam.common.tensors import Vector

# Wrappers add these parts to a parameter's name. Without them, the name does not depend on the wrapper.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}

children, parameters = (
    operator.itemgetter("_modules"),
    operator.itemgetter("_parameters"),
)  # from a module's vars()
requires = operator.attrgetter("requires_grad")


class TrainedParameters:
    """The modules of a model, and which of its parameters belong to the optimizer.

    For a small network, walking the model would be the largest overhead of a step. A flat check of the children and
    parameters of each known module shows whether the last walk is still valid.

    Arguments:
        model: the model being trained.
        base: the optimizer whose parameter groups are read.
    """

    def __init__(self, model: nn.Module, base: Optimizer) -> None:
        self.model = model
        self.base = base
        self.modules: list[nn.Module] = []
        self.params: list[nn.Parameter] = []  # the optimizer's parameters that require a gradient, each once
        self.foreign: list[nn.Parameter] = []  # the model's parameters that another optimizer owns
        self.kinds: tuple[str, ...] = ("cpu",)  # types of the devices that hold them and have autocast
        self.lazy = False  # whether a lazy module still awaits its first forward
        self._names: dict[nn.Parameter, str] = {}
        self._vars: list[dict[str, Any]] = []
        self._all: list[nn.Parameter] = []
        self._required: list[bool] = []
        self._seen: list[object] = []
        self._signature: list[int] | None = None

    def refresh(self) -> None:
        """Walk the model if a module or parameter was added, removed, frozen or thawed since the last time.

        Until then, ``params`` and the other lists stay the same objects.
        """
        if list(map(id, self._look())) == self._signature and list(map(requires, self._all)) == self._required:
            return
        self.modules = list(self.model.modules())
        self._vars = list(map(vars, self.modules))
        self.find_lazy()
        owned = dict.fromkeys(p for g in self.base.param_groups for p in g["params"])
        others = [p for p in self.model.parameters() if p not in owned]
        self.params = [p for p in owned if p.requires_grad]
        self.foreign = [p for p in others if p.requires_grad]
        types = {p.device.type for p in self.params} | {"cpu"}
        self.kinds = tuple(filter(torch.amp.is_autocast_available, types))  # not the meta device
        self._names = {}
        self._all = [*owned, *others]
        self._required = list(map(requires, self._all))
        self._seen = self._look()  # kept alive, so that no id is reused
        self._signature = list(map(id, self._seen))

    def find_lazy(self) -> None:
        """Check whether any parameter or buffer has yet to be created."""
        self.lazy = any(is_lazy(t) for t in itertools.chain(self.model.parameters(), self.model.buffers()))

    def _look(self) -> list[object]:
        seen: list[object] = []
        for group in self.base.param_groups:
            seen += group["params"]
        seen += itertools.chain.from_iterable(map(dict.values, map(children, self._vars)))
        seen += itertools.chain.from_iterable(map(dict.values, map(parameters, self._vars)))
        return seen

    @property
    def names(self) -> list[str]:
        """The model's name for each of ``params``, without wrappers; empty for a parameter outside the model."""
        if not self._names:
            self._names = {p: _bare(name) for name, p in self.model.named_parameters()}
        return [self._names.get(p, "") for p in self.params]

    def require_learning_rate(self) -> None:
        """Refuse a base whose parameter groups have no learning rate."""
        if any("lr" not in g for g in self.base.param_groups):
            raise TypeError(
                f"A decoupled step is as long as the learning rate says, but {type(self.base).__name__} has no lr in "
                "its parameter groups. Use a base that has, or the coupled form, e.g. WSAM(decouple=False)."
            )

    @property
    def momentum(self) -> Vector:
        """The optimizer's first moment of each of ``params``; None where it has none yet."""
        states = [self.base.state.get(p, {}) for p in self.params]
        return [s.get("momentum_buffer", s.get("exp_avg")) for s in states]


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
