"""RhoSchedule: a radius that changes during training, for every method that has one."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from ausam.common.settings import COUNT, NON_NEGATIVE, POSITIVE_COUNT, OneOf, checked_value
from ausam.optimizer.parameters import radius_key
from ausam.optimizer.sharpness_aware import SharpnessAware

Shape = Literal["constant", "linear", "cosine", "lr"]
USES = {
    "constant": {"start"},
    "linear": {"start", "end", "total_steps"},
    "cosine": {"start", "end", "total_steps"},
    "lr": {"start", "end", "lr_max", "lr_min"},
}


class RhoSchedule:
    """The radius of a method over training: ``rho_i(t) = f(t) * rho_i`` in each parameter group i.

        constant:  f = start                                     u = min(t / total_steps, 1)
        linear:    f = start + (end - start) * u
        cosine:    f = start + (end - start) * (1 - cos(pi * u)) / 2
        lr:        f = end + (start - end) * (lr_i - lr_min) / (lr_max - lr_min), between start and end

    ``rho_i`` is the group's own ``"rho"`` when the schedule is built, otherwise the method's. If an earlier schedule or
    a loaded state left an ``"initial_rho"``, it is that. Like torch's learning rate schedulers, it writes ``"rho"``
    and ``"initial_rho"`` into the parameter groups, so the radii are saved with the optimizer. Adadelta has a rho of
    its own, so ours is ``"sam_rho"`` there. "lr" is GSAM's rule: ``GSAM(rho=rho_max)`` and ``end=rho_min / rho_max``.

    >>> import torch
    >>> from ausam import SAM, RhoSchedule, SharpnessAware
    >>> model = torch.nn.Linear(2, 1)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(rho=0.2), model)
    >>> schedule = RhoSchedule(opt, "linear", end=0.5, total_steps=4)
    >>> for step in range(4):
    ...     print(round(opt.param_groups[0]["rho"], 3))
    ...     schedule.step()  # after opt.step(), and after the learning rate's scheduler
    0.2
    0.175
    0.15
    0.125

    Arguments:
        opt: the optimizer. Its method, or the method inside it, must have a rho.
        shape: "constant", "linear", "cosine" or "lr".
        start: factor of the radius at the start, or at ``lr_max``, >= 0.
        end: factor at the end, or at ``lr_min``, >= 0. If None (default), 0. Not with "constant".
        total_steps: calls of ``step`` until the end, >= 1. Needed by "linear" and "cosine", an error for the others.
        lr_max: learning rate at which f is ``start``. Only with "lr". If None (default), each group's initial one. Set
            it if the rate warms up.
        lr_min: learning rate at which f is ``end``, >= 0. Only with "lr". If None (default), 0.
    """

    def __init__(
        self,
        opt: SharpnessAware,
        shape: Shape,
        *,
        start: float = 1.0,
        end: float | None = None,
        total_steps: int | None = None,
        lr_max: float | None = None,
        lr_min: float | None = None,
    ) -> None:
        if not isinstance(opt, SharpnessAware):
            raise TypeError(f"opt is a {type(opt).__name__}, but it must be the SharpnessAware whose radius changes.")
        checked_value("RhoSchedule", "shape", shape, OneOf(get_args(Shape)))
        self._opt = opt
        self._key = radius_key(opt)
        self._first = f"initial_{self._key}"
        self.shape = shape
        given = {"start": start, "end": end, "total_steps": total_steps, "lr_max": lr_max, "lr_min": lr_min}
        for name, value in given.items():
            needed = name == "total_steps" and name in USES[shape]
            if value is not None and name not in USES[shape]:
                raise ValueError(f'RhoSchedule: {name} is {value}, but "{shape}" does not use it. Leave {name} out.')
            if value is not None or needed:
                checked_value("RhoSchedule", name, value, POSITIVE_COUNT if needed else NON_NEGATIVE)
        self.start, self.total_steps, self.lr_max = start, total_steps, lr_max
        self.end = 0.0 if end is None and "end" in USES[shape] else end
        self.lr_min = 0.0 if lr_min is None and "lr_min" in USES[shape] else lr_min
        self.count = 0
        self._rho = float(method_with_radius(opt.method).rho)
        self.at(0.0)

    def step(self) -> None:
        """Set the radii for the next step."""
        self._go_to(self.count + 1)

    def at(self, part: float) -> None:
        """Set the radii for this fraction of training, for loops that count it themselves."""
        groups = self._opt.param_groups
        factors = [self._factor(group, min(part, 1.0)) for group in groups]
        for group, factor in zip(groups, factors, strict=True):
            rho = group.setdefault(self._first, float(group.get(self._key, self._rho)))
            if self.shape == "lr":
                group.setdefault("initial_lr", float(group["lr"]))
            group[self._key] = factor * rho

    def _factor(self, group: dict[str, Any], u: float) -> float:
        if self.end is None:
            return self.start
        if self.shape == "cosine":
            u = (1 - math.cos(math.pi * u)) / 2
        elif self.shape == "lr":
            high, low = group.get("initial_lr", group["lr"]) if self.lr_max is None else self.lr_max, self.lr_min or 0.0
            if high <= low:
                raise ValueError(
                    f"RhoSchedule: lr_max is {high} and lr_min is {low}, but the learning rate must fall from "
                    "lr_max to lr_min. Pass lr_max > lr_min."
                )
            u = 1 - min(max((float(group["lr"]) - low) / (high - low), 0.0), 1.0)
        return self.start + (self.end - self.start) * u

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position and the settings. The radii themselves are in the optimizer's state."""
        names = ("shape", "start", "end", "total_steps", "lr_max", "lr_min", "count")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, loaded before or after the optimizer's. Different settings raise an error."""
        mine = self.state_dict()
        for name in mine:
            if name != "count" and state_dict[name] != mine[name]:
                raise ValueError(
                    f"RhoSchedule: {name} is {mine[name]}, but {state_dict[name]} in the saved state. "
                    "Build it with the settings of the saved one."
                )
        self._go_to(checked_value("RhoSchedule", "count", state_dict["count"], COUNT))

    def _go_to(self, count: int) -> None:
        self.at(count / self.total_steps if self.total_steps else 0.0)
        self.count = count


def method_with_radius(method: Any) -> Any:
    """The method that has the radius: this one, or the one inside it."""
    owner = method
    while not hasattr(owner, "rho") and hasattr(owner, "inner"):
        owner = owner.inner
    if not hasattr(owner, "rho"):
        raise ValueError(
            f"RhoSchedule: {type(method).__name__} has no rho to change. "
            "Use it with SAM or another method that has one."
        )
    return owner
