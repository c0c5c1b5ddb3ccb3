"""The trained parameters: what the model and the optimizer hold, their radius, and what a method remembers of them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ausam.common.tensors import PLAIN

# How to restore what an unfinished step has changed, last change first. Each is added before its change is made.
Undo = list[Callable[[], Any]]

get_requires_grad = operator.attrgetter("requires_grad")

# Wrappers add these parts to a parameter's name. Without them, the name does not depend on the wrapper.
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


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
        self.frozen: list[nn.Parameter] = []  # the model's parameters that require no gradient
        self.kinds: tuple[str, ...] = ("cpu",)  # types of the devices that hold them and have autocast
        self._names: dict[nn.Parameter, str] = {}
        self._dicts: list[dict[str, Any]] = []  # each module's children and parameters
        self._empty: list[dict[str, Any]] = []  # those that had none: looking for a first entry is fast
        self._all: list[nn.Parameter] = []
        self._required: list[bool] = []
        self._seen: list[object] = [None]  # None: not walked yet

    def refresh(self) -> None:
        """Walk the model if a module or parameter was added, removed, frozen or thawed since the last time.

        Until then, ``params`` and the other lists stay the same objects.
        """
        now = self._look()
        known = len(now) == len(self._seen) and all(map(operator.is_, now, self._seen)) and not any(self._empty)
        if known and [*map(get_requires_grad, self._all)] == self._required:
            return
        self._seen = [None]  # an interrupted walk is not used again
        self.modules = list(self.model.modules())
        every: list[dict[str, Any]] = [d for m in self.modules for d in (m._modules, m._parameters)]
        self._dicts, self._empty = [d for d in every if d], [d for d in every if not d]
        if any(map(is_lazy, itertools.chain(self.model.parameters(), self.model.buffers()))):
            raise RuntimeError(
                "The model has a lazy module, whose parameters do not exist yet. Run one forward before opt.backward: "
                "with torch.no_grad(): model(x)."
            )
        owned = dict.fromkeys(p for g in self.base.param_groups for p in g["params"])
        others = [p for p in self.model.parameters() if p not in owned]
        self.params = [p for p in owned if p.requires_grad]
        self.foreign = [p for p in others if p.requires_grad]
        self.frozen = [p for p in [*owned, *others] if not p.requires_grad and type(p) in PLAIN]
        types = {p.device.type for p in self.params} | {"cpu"}
        self.kinds = tuple(filter(torch.amp.is_autocast_available, types))  # not the meta device
        self._names = {}
        self._all = [*owned, *others]
        self._required = [p.requires_grad for p in self._all]
        self._seen = self._look()

    def _look(self) -> list[object]:
        seen: list[object] = []
        for group in self.base.param_groups:
            seen += group["params"]
        seen.extend(itertools.chain.from_iterable(map(dict.values, self._dicts)))
        return seen

    @property
    def names(self) -> list[str]:
        """The model's name for each of ``params``, without wrappers. Empty for a parameter outside the model."""
        if not self._names:
            self._names = {p: _without_wrappers(name) for name, p in self.model.named_parameters()}
        return [self._names.get(p, "") for p in self.params]


def radius_key(base: Optimizer) -> str:
    """The entry of a parameter group for its radius: "sam_rho" if the optimizer has a rho of its own (Adadelta)."""
    return "sam_rho" if "rho" in base.defaults else "rho"


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


class Memory:
    """A method's values between steps, bound to the parameters that its vectors have entries for.

    Freezing or thawing a layer changes those parameters and resets the memory, because an entry of one layer must not
    serve another. Parameters are identified by name, not by object, so a saved or copied memory still fits.

    Arguments:
        values: what the method wrote into ``step.state``.
        owners: the name of each parameter. None for a memory that is not bound yet.
    """

    def __init__(self, values: dict[str, Any] | None = None, owners: list[str] | None = None) -> None:
        self.values: dict[str, Any] = {} if values is None else values
        self.owners = owners
        self._params: list[nn.Parameter] = []

    def copy_for(self, trained: TrainedParameters) -> Memory:
        """A copy for the parameters that are trained now: with the values if these belong to them, otherwise empty."""
        names = self.owners if trained.params is self._params else _owners(trained)
        memory = Memory(dict(self.values) if self.owners in (None, names) else {}, names)
        memory._params = trained.params
        return memory

    def state_dict(self) -> dict[str, Any]:
        """The values and their owners."""
        return {"values": self.values, "owners": self.owners}

    @classmethod
    def load(cls, state: dict[str, Any], params: list[nn.Parameter]) -> Memory:
        """A saved memory, each entry of a vector on the device of its parameter."""
        return cls({key: _placed(value, params) for key, value in state["values"].items()}, state["owners"])


def _owners(trained: TrainedParameters) -> list[str]:
    """The name of each trained parameter: the model's, or its position and shape if it is outside the model."""
    named = zip(trained.names, trained.params, strict=True)
    return [name or f"#{i} {tuple(p.shape)}" for i, (name, p) in enumerate(named)]


def _placed(value: Any, params: list[nn.Parameter]) -> Any:
    if isinstance(value, list) and len(value) == len(params):
        return [v.to(p.device).clone() if isinstance(v, Tensor) else v for v, p in zip(value, params, strict=True)]
    return value.clone() if isinstance(value, Tensor) else value
