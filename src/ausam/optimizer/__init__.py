"""The optimizer that a method drives: moving the weights, guarding buffers, undoing a failed step."""

from ausam.optimizer.rho_schedule import RhoSchedule
from ausam.optimizer.sharpness_aware import SharpnessAware
from ausam.optimizer.step import Method, Step

__all__ = ["Method", "RhoSchedule", "SharpnessAware", "Step"]
