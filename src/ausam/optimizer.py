"""SharpnessAware: any torch optimizer, with the gradient of any method."""

from __future__ import annotations

import enum
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ausam.buffers import BufferGuard
from ausam.closure import ClosureStep
from ausam.displacement import Swappable
from ausam.distributed import GradientSync, any_of
from ausam.feedback import Feedback
from ausam.frameworks import meet, refuse_stranger
from ausam.inventory import Inventory
from ausam.memory import Memory
from ausam.methods import Plain
from ausam.settings import COUNT, OneOf, holding
from ausam.step import LossFn, Method, Step
from ausam.tensors import Vector, size

NonFinite = Literal["skip", "raise", "ignore"]

HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


class Grad(enum.Enum):
    """What :meth:`SharpnessAware.backward` has left in ``.grad`` since the last step."""

    NOTHING = enum.auto()
    GRADIENT = enum.auto()
    NONFINITE = enum.auto()


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

    Between steps the model is at ``w``: evaluate, save and copy it at any time. A signal or an error inside
    ``backward`` leaves weights, buffers, gradients and modes as they were before it. Hooks that are registered here
    get this optimizer; those of ``base``, and torch's global ones, get the base.
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
        holding("SharpnessAware", "nonfinite", nonfinite, OneOf(get_args(NonFinite)))
        holding("SharpnessAware", "seed", seed, COUNT)
        self.base = base
        self.method = method
        self.nonfinite = nonfinite
        self.seed = seed
        self.replay = replay
        self.sync_perturbation = sync_perturbation
        self.steps = 0
        self.skipped = 0
        self.samples_forward = 0
        self.samples_backward = 0
        self._memory = Memory()
        self._grad = Grad.NOTHING
        self._set_up(model)
        meet(self, model)

    def _set_up(self, model: nn.Module) -> None:
        """What is neither saved nor copied."""
        self._inventory = Inventory(model, self.base)
        self._guard = BufferGuard()
        self._swappable = Swappable(model)
        self._sync = GradientSync(model, self.sync_perturbation)
        self._under_way: dict[Step, int] = {}  # the steps that have begun and not ended, and their threads
        self._told: set[str] = set()
        for hooks in HOOKS:  # ours, so that a hook gets this optimizer and all of its state, not the base's
            setattr(self, hooks, OrderedDict())

    @property
    def model(self) -> nn.Module:
        """The module whose losses are minimised; set it where a framework wraps it after the optimizer was built."""
        return self._inventory.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if model is self._inventory.model:
            return  # or what it knows of gradients that DDP has not averaged would be lost
        self._inventory = Inventory(model, self.base)
        self._sync = GradientSync(model, self.sync_perturbation)
        self._swappable = Swappable(model)

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
        if not callable(loss_fn):
            raise TypeError(
                f"opt.backward got a {type(loss_fn).__name__}, but it needs the function that computes the losses, "
                "because a method evaluates them more than once. In place of loss.backward() write "
                'opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y).'
            )
        step = Step(loss_fn, batch, _as_index(index), weight, backward, **self._surroundings())
        feedback: Feedback = self._estimate(step)
        return feedback

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the base optimizer's step; with a closure, by torch's protocol, find the gradient first.

        The closure runs forward and backward and returns the loss; it runs as often as the method needs, and its first
        value is returned. If it clears the gradients, its gradient replaces what ``.grad`` held; if not, it is added.
        Methods that need rows or outputs refuse a closure.
        """
        if self._under_way:
            raise RuntimeError(self._occupied())
        for hook in self._hooks("_optimizer_step_pre_hooks"):
            changed = hook(self, (closure,), {})
            if changed is not None:
                (closure, *_), _ = changed
        loss = None
        if closure is not None:
            refuse_stranger(closure)
            loss = self._estimate(ClosureStep(closure, **self._surroundings()))
        elif self._grad is Grad.NOTHING:
            self._warn_if_passed_by()
        if not self._to_be_skipped():
            self.base.step()
            self.steps += 1
        self._grad = Grad.NOTHING
        for hook in self._hooks("_optimizer_step_post_hooks"):
            hook(self, (closure,), {})
        return loss

    def accumulate(self, closure: Callable[[], Any], *, scale: float = 1.0) -> Any:
        """What ``step(closure)`` does before the step: leave the gradient in ``.grad``, for more to be added to it.

        Arguments:
            closure: as for :meth:`step`; its first value is returned.
            scale: what the closure multiplies the loss with before ``backward``: that of a GradScaler, a part of 1.
        """
        return self._estimate(ClosureStep(closure, scale, **self._surroundings()))

    def _surroundings(self) -> dict[str, Any]:
        return {
            "inventory": self._inventory,
            "guard": self._guard,
            "sync": self._sync,
            "swappable": self._swappable,
            "memory": self._memory,
            "number": self.steps,
            "seed": self.seed,
            "replay": self.replay,
        }

    def _estimate(self, step: Step) -> Any:
        """Let the method find its gradient and leave it in ``.grad``, or leave everything as it was.

        A signal may raise wherever a function is called. Up to the commit, whatever has happened is undone by one C
        call. The commit is one C call, too, so a step is recorded whole or not at all.
        """
        undo = step.journal.eraser()
        try:
            step.journal.note(self._under_way.pop, step, None)
            self._under_way[step] = threading.get_ident()
            if len(self._under_way) > 1:
                raise RuntimeError(self._occupied())
            step.begin()
            gradient = self.method.gradient(step)
            step.settle()
            accepted = self.nonfinite == "ignore" or self._finite(step, gradient)
            if not accepted:
                self._refuse(step, gradient)
            result = step.result()
            changes = {
                "samples_forward": self.samples_forward + step.samples_forward,
                "samples_backward": self.samples_backward + step.samples_backward,
                "skipped": self.skipped + (not accepted),
                "_memory": step.remembered() if accepted else self._memory,
                "_grad": Grad.GRADIENT if accepted and self._grad is not Grad.NONFINITE else Grad.NONFINITE,
            }
            record = self.__dict__.update, changes
            step.journal.commit([*step.deposit(gradient), record, (self._under_way.pop, step, None)])
            return result
        except BaseException:
            undo()
            raise

    def _finite(self, step: Step, gradient: Vector) -> bool:
        size = step.size(gradient)
        if step.group is None:
            return math.isfinite(size.item())
        # One process alone may have met it; if the others carried on, they would wait for it or drift away from it.
        return not any_of(~size.isfinite(), step.group)

    def _refuse(self, step: Step, gradient: Vector) -> None:
        """A step that is not finite leaves no trace but a non-finite ``.grad``."""
        step.rollback()
        if self.nonfinite == "raise":
            raise RuntimeError(
                f"The loss or the gradient of step {self.steps} is not finite. Weights and buffers are as before it. "
                'Look for a too large learning rate or bad input, or pass nonfinite="skip" to leave such batches out.'
            )
        for g in gradient:
            if g is not None:
                # A finite gradient of an infinite loss would pass GradScaler's test and be used after all.
                (g if g.layout == torch.strided else g._values()).fill_(torch.nan)
                break
        self._tell(
            "skipped",
            f"The loss or the gradient of step {self.steps} is not finite: that step changes nothing. "
            "This is said once; `opt.skipped` counts.",
            stacklevel=5,
        )

    def _to_be_skipped(self) -> bool:
        """Whether ``.grad`` holds a gradient that is not finite: somebody may have cleared or unscaled it since."""
        if self._grad is not Grad.NONFINITE:
            return False
        return not math.isfinite(size([p.grad for g in self.param_groups for p in g["params"]]).item())

    def _warn_if_passed_by(self) -> None:
        """Say so if the gradients of a step do not come from the method."""
        if isinstance(self.method, Plain) or all(p.grad is None for g in self.param_groups for p in g["params"]):
            return
        self._tell(
            "passed by",
            f"opt.step() found gradients that {type(self.method).__name__} did not compute: this step is the base "
            "optimizer's own. Call opt.backward(loss_fn, *batch) in place of loss.backward(), or opt.step(closure). "
            "This is said once.",
            stacklevel=4,
        )

    def _tell(self, key: str, message: str, *, stacklevel: int) -> None:
        if key not in self._told:
            self._told.add(key)
            warnings.warn(message, RuntimeWarning, stacklevel=stacklevel)

    def _occupied(self) -> str:
        here = threading.get_ident()
        if all(thread == here for thread in self._under_way.values()):
            return (
                "The loss function, or the closure, of this optimizer calls opt.backward or opt.step itself, while the "
                "weights may be displaced. Let it compute the losses only, and call the optimizer once it has returned."
            )
        return (
            "Another thread is inside this optimizer, and the weights may be displaced. "
            "Let one thread at a time call opt.backward and opt.step."
        )

    def _hooks(self, name: str) -> list[Callable[..., Any]]:
        return list(getattr(self, name).values())

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
        for step in self._under_way:
            if isinstance(step, ClosureStep):
                step.zero_grad_called()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base, with the base's defaults."""
        self.base.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"SharpnessAware({self.base!r}, {self.method!r})"

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base's own state dict plus one key, so that the plain base optimizer loads it too."""
        for hook in self._hooks("_optimizer_state_dict_pre_hooks"):
            hook(self)
        ours = {
            "method": type(self.method).__name__,
            "memory": self._memory.state_dict(),
            "steps": self.steps,
            "skipped": self.skipped,
            "samples_forward": self.samples_forward,
            "samples_backward": self.samples_backward,
        }
        state_dict = {**self.base.state_dict(), "ausam": ours}
        for hook in self._hooks("_optimizer_state_dict_post_hooks"):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ours or a plain base optimizer's; the latter starts the method afresh."""
        state_dict = dict(state_dict)
        for hook in self._hooks("_optimizer_load_state_dict_pre_hooks"):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        self.base.load_state_dict({k: v for k, v in state_dict.items() if k != "ausam"})
        ours = state_dict.get("ausam", {})
        for counter in ("steps", "skipped", "samples_forward", "samples_backward"):
            setattr(self, counter, ours.get(counter, 0))
        self._memory = Memory()
        name = type(self.method).__name__
        if ours.get("method", name) != name:
            warnings.warn(
                f"The state was saved with {ours['method']} and is loaded into {name}: "
                "the base optimizer's part is used, the method starts afresh.",
                stacklevel=2,
            )
        elif "memory" in ours:
            self._memory = Memory.load(ours["memory"], self._inventory.trained())
        for hook in self._hooks("_optimizer_load_state_dict_post_hooks"):
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler leaves a bound `step` on the instance.
        transient = {"step", "_inventory", "_guard", "_sync", "_swappable", "_under_way", "_told", *HOOKS}
        return {"model": self.model, **{k: v for k, v in self.__dict__.items() if k not in transient}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state.pop("model")
        self.__dict__.update(state)
        self._set_up(model)


def _as_index(index: Any) -> Tensor | None:
    if index is None:
        return None
    given: Tensor = torch.as_tensor(index)
    if given.dim() != 1 or given.dtype.is_floating_point or given.dtype == torch.bool:
        raise TypeError(
            f"index has shape {tuple(given.shape)} and type {given.dtype}, but one whole number per sample is needed: "
            "the dataset index that Indexed(dataset) delivers."
        )
    return given
