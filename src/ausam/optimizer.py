"""SharpnessAware: any torch optimizer, with the gradient of any method."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ausam.closure import ClosureRun
from ausam.feedback import Feedback
from ausam.processes import any_of
from ausam.run import LossFn, Method, Run
from ausam.tensors import Vector, norm
from ausam.workspace import Workspace

NonFinite = Literal["skip", "raise", "ignore"]


class SharpnessAware(Optimizer):
    """A torch optimizer whose gradient comes from a sharpness-aware method.

    ``opt.backward(loss_fn, *batch)`` takes the place of ``loss.backward()``; everything after it stays as it was:
    clipping, accumulation, ``scaler.step(opt)``, schedulers, checkpoints.

    >>> import torch
    >>> from ausam import SAM, SharpnessAware
    >>> model = torch.nn.Linear(4, 3)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.1), model)
    >>> losses = lambda x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> feedback = opt.backward(losses, torch.randn(8, 4), torch.randint(3, (8,)))
    >>> opt.step(); opt.zero_grad()
    >>> feedback.sharpness.shape
    torch.Size([8])

    Arguments:
        base: the optimizer that takes the step. Its ``param_groups``, ``state`` and ``defaults`` are also ours.
        method: what gradient it takes it with: ``Plain()``, ``SAM(rho)``, ``ASAM(rho)``, ...
        model: the module that the losses come from; with DDP, the wrapped one. Needed for BatchNorm and no_sync.
        sync_perturbation: average the perturbation's gradient over processes. False (default): each perturbs by its own
            batch, as the SAM paper does. Sharded models (FSDP2) always average.
        nonfinite: what to do when a loss or gradient is inf or NaN. "skip" (default): ``step`` changes nothing, counts
            it in ``skipped`` and warns once. "raise": RuntimeError, everything restored. "ignore": nothing is read back
            or promised.
        seed: of the decisions that a method draws (RST's coin), the same in every process.
        replay: draw torch's random numbers (dropout, stochastic depth) once a step: its later passes see the same
            masks, as in the authors' JAX code, as far as they use the same rows. False (default): new ones each pass.

    Between steps the model is at ``w``: evaluate, save and copy it at any time.
    """

    # torch's GradScaler would otherwise hand its scale to us when a fused base asks for it, and base.step() miss it.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        base: Optimizer,
        method: Method,
        model: nn.Module,
        *,
        sync_perturbation: bool = False,
        nonfinite: NonFinite = "skip",
        seed: int = 0,
        replay: bool = False,
    ) -> None:
        # No super().__init__(): groups, state, defaults and hooks are the base's own, through properties.
        if isinstance(base, SharpnessAware):
            raise TypeError("The base is a SharpnessAware already; wrap the plain torch optimizer, once.")
        if not isinstance(base, Optimizer):
            raise TypeError(f"base is a {type(base).__name__}, but a torch.optim.Optimizer is needed, e.g. SGD(...).")
        if isinstance(base, LBFGS):
            raise TypeError(
                "LBFGS searches along a line and evaluates its closure many times a step, so one sharpness-aware "
                "gradient a step has no meaning for it. Use SGD, Adam, AdamW or RMSprop."
            )
        if isinstance(method, type) or not hasattr(method, "gradient"):
            raise TypeError(f"method is {method!r}, but an instance such as SAM(rho=0.05) is needed.")
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is a {type(model).__name__}, but the torch.nn.Module that is trained is needed.")
        if type(model).__name__ == "FullyShardedDataParallel":
            raise TypeError(
                "FullyShardedDataParallel (FSDP1) hides the parameters in flat buffers, of which no norm over all "
                "processes can be taken. Shard the model with torch.distributed.fsdp.fully_shard (FSDP2)."
            )
        if nonfinite not in ("skip", "raise", "ignore"):
            raise ValueError(f'nonfinite is {nonfinite!r}; it is "skip", "raise" or "ignore".')
        self.base = base
        self.method = method
        self.nonfinite = nonfinite
        self.steps = 0
        self.skipped = 0
        self._memory: dict[str, Any] = {}
        self._workspace = Workspace(base, model, sync_perturbation, seed, replay)
        self._poisoned = False
        self.samples_forward = 0
        self.samples_backward = 0

    @property
    def model(self) -> nn.Module:
        """The module whose losses are minimised; set it where a framework wraps it after the optimizer was built."""
        return self._workspace.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._workspace.model = model

    # -- the step ------------------------------------------------------------------------------------------------

    def backward(
        self,
        loss_fn: LossFn,
        *batch: Any,
        index: Any = None,
        weight: Tensor | None = None,
        backward: Callable[[Tensor], Any] = Tensor.backward,
    ) -> Feedback:
        """Add the method's gradient of the mean loss to ``.grad`` and return the per-sample losses.

        Arguments:
            loss_fn: ``loss_fn(*batch)`` returns losses of shape ``(n,)``, or ``(losses, outputs)``. Neither reduced nor
                back-propagated. Called as often as the method needs.
            batch: what ``loss_fn`` takes.
            index: dataset index of each sample, for the sampler's ``update``.
            weight: factor of each sample's loss (``sampler.weight(index)``); the mean stays over n.
            backward: how a scalar loss is back-propagated, e.g. ``lambda loss: scaler.scale(loss).backward()`` or
                ``accelerator.backward``.
        """
        index = _as_index(index)
        run = Run(self._workspace, self._memory, self.steps, loss_fn, batch, index, weight, backward)
        with run:
            gradient = self.method.gradient(run)
        self._accept(run, gradient)
        run.deposit(gradient)
        return Feedback(index, run.loss, run.perturbed, run.outputs_at_w)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the base optimizer's step; with a closure, by torch's protocol, find the gradient first.

        The closure clears gradients, runs forward and backward and returns the loss; it runs as often as the method
        needs, and its first value is returned. Methods that need rows or outputs refuse a closure.
        """
        loss = None
        if closure is not None:
            run = ClosureRun(self._workspace, self._memory, self.steps, closure)
            with run:
                gradient = self.method.gradient(run)
            self._accept(run, gradient)
            run.deposit(gradient)
            loss = run.first
        if self._poisoned:
            self._poisoned = False
            # Whoever cleared or unscaled the gradients since may have removed the non-finite ones.
            if not bool(torch.isfinite(norm([p.grad for g in self.param_groups for p in g["params"]]))):
                return loss
        self.base.step()
        self.steps += 1
        return loss

    def _accept(self, run: Run, gradient: Vector) -> None:
        """Keep the method's memory if the step is finite; else leave no trace but a non-finite ``.grad``."""
        self.samples_forward += run.samples_forward
        self.samples_backward += run.samples_backward
        if self.nonfinite == "ignore":
            self._remember(run)
            return
        size = norm(gradient)
        bad = ~torch.isfinite(size + torch.as_tensor(run.total, device=size.device))
        # One process alone may have met it; if the others went on, they would wait for it or drift away from it.
        if not (bool(bad) if run.group is None else any_of(bad, run.group)):
            self._remember(run)
            return
        run.undo_buffers()
        if self.nonfinite == "raise":
            raise RuntimeError(
                f"The loss or the gradient of step {self.steps} is not finite. Weights and buffers are as before it. "
                'Look for a too large learning rate or bad input, or pass nonfinite="skip" to leave such batches out.'
            )
        self.skipped += 1
        self._poisoned = True
        for g in gradient:
            if g is not None:
                # A finite gradient of an infinite loss would pass GradScaler's test and be used after all.
                g.fill_(torch.nan)
                break
        if self.skipped == 1:
            warnings.warn(
                f"The loss or the gradient of step {self.steps} is not finite: that step changes nothing. "
                "This is said once; `opt.skipped` counts.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _remember(self, run: Run) -> None:
        self._memory, self._workspace.trained = run.state, run.trained

    # -- the base's own ------------------------------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base's parameter groups, never a copy: load_state_dict replaces the list."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        """The base's state; nothing of ours is in it."""
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

    def __getattr__(self, name: str) -> Any:
        """Hooks and whatever else the base has and we do not."""
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.base, name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the base's parameters."""
        self.base.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base, with the base's defaults."""
        self.base.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"SharpnessAware({self.base!r}, {self.method!r})"

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base's own state dict plus one key, so that the plain base optimizer loads it too."""
        ours = {
            "method": type(self.method).__name__,
            "memory": self._memory,
            "steps": self.steps,
            "skipped": self.skipped,
            "samples_forward": self.samples_forward,
            "samples_backward": self.samples_backward,
        }
        return {**self.base.state_dict(), "ausam": ours}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ours or a plain base optimizer's; the latter starts the method afresh."""
        self.base.load_state_dict({k: v for k, v in state_dict.items() if k != "ausam"})
        ours = state_dict.get("ausam", {})
        for counter in ("steps", "skipped", "samples_forward", "samples_backward"):
            setattr(self, counter, ours.get(counter, 0))
        self._memory, self._workspace.trained = {}, []
        if ours.get("method", type(self.method).__name__) != type(self.method).__name__:
            warnings.warn(
                f"The state was saved with {ours['method']} and is loaded into {type(self.method).__name__}: "
                "the base optimizer's part is used, the method starts afresh.",
                stacklevel=2,
            )
            return
        params = [p for g in self.param_groups for p in g["params"] if p.requires_grad]
        self._memory = {key: _placed(value, params) for key, value in ours.get("memory", {}).items()}

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler leaves a bound `step` on the instance, and the room for copies is not worth carrying.
        state = {k: v for k, v in self.__dict__.items() if k not in ("step", "_workspace")}
        w = self._workspace
        return {**state, "workspace": (w.model, w.sync_perturbation, w.seed, w.replay)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model, *settings = state.pop("workspace")
        self.__dict__.update(state)
        self._workspace = Workspace(self.base, model, *settings)


def _placed(value: Any, params: list[nn.Parameter]) -> Any:
    """A loaded vector with each entry on the device of its parameter; anything else as it is."""
    if isinstance(value, list) and len(value) == len(params):
        return [v.to(p.device).clone() if isinstance(v, Tensor) else v for v, p in zip(value, params, strict=True)]
    return value.clone() if isinstance(value, Tensor) else value


def _as_index(index: Any) -> Tensor | None:
    if index is None:
        return None
    given: Tensor = torch.as_tensor(index)
    if given.dim() != 1 or given.dtype.is_floating_point or given.dtype == torch.bool:
        raise TypeError(
            f"index has shape {tuple(given.shape)} and type {given.dtype}, but one whole number a sample is needed: "
            "the dataset index that Indexed(dataset) delivers."
        )
    return given
