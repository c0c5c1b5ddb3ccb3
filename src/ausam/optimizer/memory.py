"""Memory: a method's state between steps, and the parameters that it belongs to."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ausam.optimizer.parameters import TrainedParameters


class Memory:
    """A method's values, bound to the parameters that its vectors have entries for.

    Freezing or thawing a layer changes those parameters and resets the memory, because an entry of one layer must not
    serve another. Parameters are identified by name, not by object, so a saved or copied memory still fits.

    Arguments:
        values: what the method wrote into ``step.state``.
        owners: the name of each parameter; None for a memory that is not bound yet.
    """

    def __init__(self, values: dict[str, Any] | None = None, owners: list[str] | None = None) -> None:
        self.values: dict[str, Any] = {} if values is None else values
        self.owners = owners
        self._params: list[nn.Parameter] = []

    def of(self, params: list[nn.Parameter], trained: TrainedParameters) -> Memory:
        """The memory for these parameters: this one if it belongs to them, otherwise an empty one."""
        if params is self._params:
            return self
        names = owners(params, trained)
        memory = Memory(self.values if self.owners in (None, names) else {}, names)
        memory._params = params
        return memory

    def renewed(self, values: dict[str, Any]) -> Memory:
        """The same binding with other values."""
        memory = Memory(values, self.owners)
        memory._params = self._params
        return memory

    def state_dict(self) -> dict[str, Any]:
        """The values and their owners."""
        return {"values": self.values, "owners": self.owners}

    @classmethod
    def load(cls, state: dict[str, Any], params: list[nn.Parameter]) -> Memory:
        """A saved memory, each entry of a vector on the device of its parameter."""
        return cls({key: _placed(value, params) for key, value in state["values"].items()}, state["owners"])


def owners(params: list[nn.Parameter], trained: TrainedParameters) -> list[str]:
    """The name of each parameter: the model's, or its position and shape if it is outside the model."""
    names = trained.names(params)
    return [name or f"#{i} {tuple(p.shape)}" for i, (name, p) in enumerate(zip(names, params, strict=True))]


def _placed(value: Any, params: list[nn.Parameter]) -> Any:
    if isinstance(value, list) and len(value) == len(params):
        return [v.to(p.device).clone() if isinstance(v, Tensor) else v for v, p in zip(value, params, strict=True)]
    return value.clone() if isinstance(value, Tensor) else value
