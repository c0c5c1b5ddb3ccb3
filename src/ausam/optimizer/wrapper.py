"""OptimizerWrapper: a torch optimizer that shares the parameter groups, state and defaults of another."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch.optim import Optimizer

from ausam.optimizer.errors import refuse_attribute

HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


class OptimizerWrapper(Optimizer):
    """Groups, state and defaults are the base's own, through properties, so nothing can go stale; hooks are ours."""

    base: Optimizer

    # A fused base asks GradScaler for its scale. Without this, GradScaler would give it to us and base.step() miss it.
    _step_supports_amp_scaling = False

    def _clear_hooks(self) -> None:
        """Have no hooks: a hook receives this optimizer with all of its state, not the base."""
        for hooks in HOOKS:
            setattr(self, hooks, OrderedDict())

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

    def _refuse_rho(self, rho: Any) -> None:
        raise AttributeError(
            f'SharpnessAware has no rho: the method has. During training write group["rho"] = {rho!r} for each group '
            "in opt.param_groups, or use RhoSchedule."
        )

    rho = property(None, _refuse_rho)  # without it, the attribute would be set and nothing would read it

    def __getattr__(self, name: str) -> Any:
        """Forward everything else, such as hooks, to the base."""
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(name)
        refuse_attribute(name)
        return getattr(self.base, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base, with the base's defaults."""
        self.base.add_param_group(param_group)
