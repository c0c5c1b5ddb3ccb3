"""davda54/sam's interface: a training script that calls ``first_step`` and ``second_step`` changes one import.

It buys exact weights, BatchNorm that moves once and complete checkpoints. Sample selection, the audit, every other
method, DDP without extra code and one GradScaler call need :class:`ausam.SharpnessAware`: see docs/port.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ausam.common.settings import NON_NEGATIVE, checked_value
from ausam.common.tensors import CPU, present
from ausam.methods import Plain
from ausam.optimizer.buffers import Snapshot
from ausam.optimizer.errors import as_module, check_state_dict, checked_base
from ausam.optimizer.nonfinite import nonfinite_flag
from ausam.optimizer.parameters import radius_key
from ausam.optimizer.wrapper import OptimizerWrapper

WARNINGS = {
    "model": (
        "SAM was built without model=, so it cannot restore buffers: if the network has BatchNorm, its statistics move "
        "twice per step, the second time at w + e. Write SAM(model.parameters(), SGD, model=model, ...); "
        "enable_running_stats and disable_running_stats are not needed then."
    ),
    "twice": (
        "first_step was called twice without second_step. The weights go back to w before they move again, but the "
        "last gradient was computed at w + e. To accumulate, call backward for every micro-batch, first_step once, "
        "backward for every micro-batch again, and second_step once."
    ),
    "changed": (
        "The gradients were changed between backward and first_step, by clipping or GradScaler.unscale_, but not "
        "before second_step. The optimizer steps with those of the second pass: not clipped, or still multiplied by "
        "the scale. Clip or unscale between the second backward and second_step, with scaler.update() after each of "
        "the two steps."
    ),
    "plain": (
        "step() without a closure and without first_step is a step of the base optimizer, not of SAM. Call first_step, "
        "backward again and second_step, or step(closure)."
    ),
    "stepped": (
        "step() without a closure after first_step is taken as second_step(). Call second_step itself: GradScaler.step "
        "leaves step() out if a gradient is not finite, and the weights would stay at w + e. Write "
        "scaler.unscale_(opt); opt.second_step(); scaler.update()."
    ),
    "nonfinite": "The gradient is not finite, so this step is skipped. `opt.skipped` counts such steps.",
    "old": (
        "The state was saved by davda54/sam, which does not save the base optimizer's (momentum). The base optimizer "
        "starts from scratch."
    ),
}


class SAM(OptimizerWrapper):
    """SAM in two calls, as davda54/sam has it. Equal to it bit for bit for a network without BatchNorm.

        e = rho * g / (|g| + 1e-12);      adaptive: e = rho * w^2 * g / (| |w| * g | + 1e-12)

    Foret, Kleiner, Mobahi, Neyshabur: Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.
    ``adaptive`` after Kwon et al., ICML 2021.

    >>> import torch
    >>> from ausam.compat import SAM                                        # was: from sam import SAM
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> criterion = torch.nn.CrossEntropyLoss()
    >>> optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, model=model, lr=0.1, momentum=0.9)
    >>> criterion(model(x), y).backward()
    >>> optimizer.first_step(zero_grad=True)                                # now at w + e
    >>> criterion(model(x), y).backward()
    >>> optimizer.second_step(zero_grad=True)                               # back at w, and one step of SGD

    Arguments:
        params: parameters, or groups of them. A group may have its own ``rho`` and ``adaptive``.
        base_optimizer: the class of the optimizer that takes the step, such as ``torch.optim.SGD``.
        rho: radius of the perturbation, >= 0. If the base has a ``rho`` of its own (Adadelta), groups call ours
            ``sam_rho``.
        adaptive: scale the perturbation by the weights (ASAM). Use a rho ten times as large.
        model: the network, or a list of networks. What the second forward changes in its buffers (BatchNorm's
            statistics) is undone. Without it they move twice per step, and a warning says so.
        kwargs: arguments of the base: ``lr``, ``momentum``, ...

    The perturbation uses the gradients that are in ``.grad``. Under DDP these are averages unless the first backward
    runs inside ``model.no_sync()``. Averaged, all processes move to the same w + e, that of the global batch, for one
    more all-reduce. Inside ``no_sync`` each process perturbs with its own batch, as in the SAM paper (m-sharpness).
    Either way the second backward must be averaged, and all processes return to the same w.

    A step whose second gradient is not finite is skipped, with a warning, and counted in ``skipped``. With
    ``maximize=True`` the perturbation goes downhill. Cost: two forward-backwards. Memory for one copy of the weights.
    """

    _unprepared = (
        "accelerator.prepare would hide first_step and second_step. Leave the optimizer out, model, loader = "
        "accelerator.prepare(model, loader), and call them as before, without fp16. Or use SharpnessAware and "
        "prepare(accelerator, ...) from ausam.integrations.accelerate."
    )

    def __init__(
        self,
        params: Any,
        base_optimizer: Callable[..., Optimizer],
        rho: float = 0.05,
        adaptive: bool = False,
        model: nn.Module | list[nn.Module] | None = None,
        **kwargs: Any,
    ) -> None:
        # No super().__init__(): groups, state, defaults and hooks are the base's own.
        if not callable(base_optimizer):
            raise TypeError(
                f"base_optimizer is a {type(base_optimizer).__name__}, but a class is needed. "
                "Write SAM(model.parameters(), torch.optim.SGD, lr=0.1)."
            )
        checked_value("SAM", "rho", rho, NON_NEGATIVE)
        self.base = self.base_optimizer = base_optimizer(params, **kwargs)
        checked_base(self.base, Plain())
        self._radius = radius_key(self.base)
        self._own = {self._radius: rho, "adaptive": adaptive}
        self._complete_groups()
        self.model = None if model is None else as_module(model)
        self.skipped = 0
        self._warned: set[str] = set()
        self._saved: list[tuple[Tensor, Tensor]] = []  # (parameter, its value at w) between the two steps
        self._buffers: Snapshot | None = None  # what the model's buffers were, between the two steps
        if model is None:
            self._warn_once("model")
        # One small parameter shows whether gradients were clipped or unscaled since backward.
        params = [p for g in self.param_groups for p in g["params"] if p.requires_grad and p.is_leaf]
        self._watched = min(params, key=Tensor.numel, default=None)
        self._noted = noted = list[Tensor]()  # its gradient after backward
        self._changed = torch.tensor(False, device=CPU)  # whether that of the first pass was changed

        def note(p: Tensor) -> None:  # a bound method would keep a replaced optimizer alive
            noted[:] = [p.grad.clone()] if p.grad is not None else []

        if self._watched is not None:
            self._watched.register_post_accumulate_grad_hook(note)

    def _complete_groups(self) -> None:
        for group in self.param_groups:
            for name, value in self._own.items():
                group.setdefault(name, value)
            checked_value("SAM", f"{self._radius} of a parameter group", group[self._radius], NON_NEGATIVE)

    # -- the two steps -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        """Move the weights from w to w + e, after the first backward."""
        if self._saved:
            self._warn_once("twice")
            self._return()
        moved = [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]
        if not moved:
            raise RuntimeError(
                "No parameter has a gradient, so there is no direction to perturb in. Call loss.backward() before "
                "first_step, and before step(closure) too."
            )
        self._changed = self._changed_since_backward()
        device = self.param_groups[0]["params"][0].device
        # In the order of davda54/sam, so that the sum rounds in the same way.
        norms = [((p.abs() if g["adaptive"] else 1.0) * p.grad).norm(p=2).to(device) for g, p in moved]
        norm = torch.stack(norms).norm(p=2) + 1e-12
        if self.model is not None:
            self._buffers = Snapshot()
            self._buffers.take(list(self.model.modules()))
        self._saved = [(p, p.detach().clone()) for _, p in moved]
        for g, p in moved:
            scale = (-g[self._radius] if g.get("maximize") else g[self._radius]) / norm
            p.add_((p.square() if g["adaptive"] else 1.0) * p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        """Return to w, and take the base optimizer's step with the gradient at w + e."""
        if not self._saved:
            raise RuntimeError(
                "second_step was called without first_step, so the gradient is not SAM's. Call first_step after the "
                "first backward, and backward again before second_step."
            )
        changed = self._changed & ~self._changed_since_backward()
        self._return()
        bad = nonfinite_flag(present([p.grad for g in self.param_groups for p in g["params"]]))
        skip, unequal = torch.stack([bad, changed.to(bad)]).tolist()  # the only synchronisation with the device
        if unequal:
            self._warn_once("changed")
        if skip:
            self.skipped += 1
            self._warn_once("nonfinite")
        else:
            self.base.step()
        self._opt_called = True  # torch's schedulers ask whether a step was taken
        if zero_grad:
            self.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Both steps, after ``loss.backward()``: the closure runs forward and backward at w + e.

        Like davda54/sam's, it returns nothing: the closure's loss is that of the perturbed weights.
        """
        if closure is None:
            self._warn_once("stepped" if self._saved else "plain")
            (self.second_step if self._saved else self.base.step)()
            return
        if not callable(closure):
            raise TypeError(
                f"step got a {type(closure).__name__}, but it takes a closure that runs forward and backward. After "
                "loss.backward() call first_step, backward again and second_step, or step(closure)."
            )
        self.first_step(zero_grad=True)
        with torch.enable_grad():
            closure()
        self.second_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.base.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with the rho and ``adaptive`` of the constructor unless it has its own."""
        self.base.add_param_group(param_group)
        self._complete_groups()

    def _return(self) -> None:
        """Restore weights and buffers from their copies: w + e - e would differ from w."""
        for p, value in self._saved:
            p.copy_(value)
        if self._buffers is not None:
            self._buffers.restore()
        self._saved, self._buffers = [], None

    def _changed_since_backward(self) -> Tensor:
        """Whether the gradient of the watched parameter differs from what its last backward left."""
        grad = None if self._watched is None else self._watched.grad
        if grad is None or not self._noted or {grad.layout, self._noted[0].layout} != {torch.strided}:
            return torch.tensor(False, device=CPU)
        changed: Tensor = grad.ne(self._noted[0]).any()
        return changed

    def _warn_once(self, key: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(f"{WARNINGS[key]} This warning appears once.", RuntimeWarning, stacklevel=3)

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base's state dict. Its groups hold rho and ``adaptive``."""
        if self._saved:
            raise RuntimeError(
                "Between first_step and second_step the weights are at w + e, so a checkpoint would hold the wrong "
                "ones. Save after second_step."
            )
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class, of the base optimizer or of davda54/sam."""
        check_state_dict(state_dict)
        # davda54/sam's own states hold a copy of the weights, and nothing of the base's.
        states = {p: {k: v for k, v in s.items() if k != "old_p"} for p, s in state_dict["state"].items()}
        states = {p: state for p, state in states.items() if state}
        if not states and any("old_p" in state for state in state_dict["state"].values()):
            self._warn_once("old")
        radii = [{name: group[name] for name in self._own} for group in self.param_groups]
        self.base.load_state_dict({**state_dict, "state": states})
        for group, own in zip(self.param_groups, radii, strict=True):  # the base's own state dict has neither
            group.update({name: group.get(name, value) for name, value in own.items()})

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "step"}  # a scheduler leaves a bound step here

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
