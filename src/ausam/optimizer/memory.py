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

    def copy_for(self, trained: TrainedParameters) -> Memory:
        """A copy for the parameters that are trained now: with the values if these belong to them, otherwise empty."""
        params = trained.params
        names = self.owners if params is self._params else owners(trained)
        memory = Memory(dict(self.values) if self.owners in (None, names) else {}, names)
        memory._params = params
        return memory

    def state_dict(self) -> dict[str, Any]:
        """The values and their owners."""
        return {"values": self.values, "owners": self.owners}

    @classmethod
    def load(cls, state: dict[str, Any], params: list[nn.Parameter]) -> Memory:
        """A saved memory, each entry of a vector on the device of its parameter."""
        return cls({key: _placed(value, params) for key, value in state["values"].items()}, state["owners"])


def owners(trained: TrainedParameters) -> list[str]:
    """The name of each trained parameter: the model's, or its position and shape if it is outside the model."""
    named = zip(trained.names, trained.params, strict=True)
    return [name or f"#{i} {tuple(p.shape)}" for i, (name, p) in enumerate(named)]


def _placed(value: Any, params: list[nn.Parameter]) -> Any:
    if isinstance(value, list) and len(value) == len(params):
        return [v.to(p.device).clone() if isinstance(v, Tensor) else v for v, p in zip(value, params, strict=True)]
    return value.clone() if isinstance(value, Tensor) else value
