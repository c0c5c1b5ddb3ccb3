"""Where rho is read: a parameter group's own, which a schedule may have written, or else the method's."""

from __future__ import annotations

from ausam.common.settings import NON_NEGATIVE, checked_value
from ausam.optimizer.parameters import TrainedParameters


def radius(rho: float, trained: TrainedParameters) -> float | list[float]:
    """``rho``, or the parameter groups' own value; one radius per trained parameter if these differ."""
    groups = trained.base.param_groups
    if not any("rho" in g for g in groups):
        return rho
    for g in groups:
        checked_value("SharpnessAware", "rho of a parameter group", g.get("rho", rho), NON_NEGATIVE)
    of = {p: float(g.get("rho", rho)) for g in reversed(groups) for p in g["params"]}
    radii = [of[p] for p in trained.params]
    # If all groups share one radius (a schedule), a scalar is as fast as the method's own and rounds the same.
    return radii[0] if len(set(radii)) == 1 else radii
