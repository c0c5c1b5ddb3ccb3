"""Optimizers made of others: OptimizerWrapper shares the groups and state of one, OptimizerList joins several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ausam.optimizer.errors import UNPREPARED, refuse_attribute
from ausam.optimizer.parameters import radius_key


class OptimizerWrapper(Optimizer):
    """Groups, state and defaults are the base's own, through properties, so nothing can go stale."""

    base: Optimizer

    _unprepared = UNPREPARED  # what an error says if Accelerate wraps the optimizer
    _scaler_steps = False  # whether a GradScaler is about to call step()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """False: else GradScaler would give us the scale, and a fused base miss it. Nothing else reads it."""
        self._scaler_steps = True
        return False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base's parameter groups, never a copy: load_state_dict replaces the list."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        """The base's state, without anything of the method's."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The base's defaults."""
        return self.base.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.base.defaults = defaults

    def _rho(self, rho: Any) -> None:
        raise AttributeError(
            f'{type(self).__name__} has no rho to set. During training write group["{radius_key(self.base)}"] = '
            f"{rho!r} for each group in opt.param_groups. For SharpnessAware, RhoSchedule does it."
        )

    rho = property(None, _rho)  # without it, the attribute would be set and nothing would read it

    def __getattr__(self, name: str) -> Any:
        """Forward everything else, such as hooks, to the base."""
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(name)
        refuse_attribute(name, self._unprepared)
        return getattr(self.base, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base, with the base's defaults."""
        self.base.add_param_group(param_group)


class OptimizerList(Optimizer):
    """Several optimizers as one, each with parameters of its own: Muon for the matrices and AdamW for the rest.

    Arguments:
        optimizers: the optimizers, which go on sharing their parameter groups with this one.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        # No super().__init__(): groups, state and defaults are the optimizers' own.
        self.optimizers = list(optimizers)
        params = [p for g in self.param_groups for p in g["params"]]
        if len(params) != len(set(params)):
            raise ValueError("Two of the optimizers train the same parameter. Give each parameter to one of them.")

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all."""
        return [g for o in self.optimizers for g in o.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """The state of all."""
        return {p: s for o in self.optimizers for p, s in o.state.items()}

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of all."""
        return {k: v for o in self.optimizers for k, v in o.defaults.items()}

    def __getattr__(self, name: str) -> Any:
        """Hooks for saving and loading belong to one of the optimizers."""
        if name.endswith("_hooks"):
            raise AttributeError("Register this hook on the one of the optimizers whose state it is for.")
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Each takes its step."""
        for o in self.optimizers:
            o.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Each clears the gradients of its parameters."""
        for o in self.optimizers:
            o.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Raises an error: it does not say which of the optimizers trains the group."""
        raise TypeError("Which of the optimizers is to train this group? Call add_param_group of that one.")

    def state_dict(self) -> dict[str, Any]:
        """The state dict of each."""
        return {"state": {}, "param_groups": [], "optimizers": [o.state_dict() for o in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned, into as many optimizers."""
        states = state_dict.get("optimizers", ())
        if len(states) != len(self.optimizers):
            raise ValueError(f"The state holds {len(states)} optimizers, but there are {len(self.optimizers)}.")
        for o, state in zip(self.optimizers, states, strict=True):
            o.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"[{', '.join(type(o).__name__ for o in self.optimizers)}]"
