"""SharpnessAware: any torch optimizer, driven by the gradient of any method."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ausam.common.settings import COUNT, OneOf, YesNo, checked_value
from ausam.common.tensors import Vector, add, norm, present
from ausam.feedback import Feedback
from ausam.methods import Plain
from ausam.optimizer.distributed import average_gradients
from ausam.optimizer.errors import (
    ADDED,
    ADDS,
    BYPASSED,
    NO_GRADIENT,
    NOT_FINITE,
    NOT_SCALED,
    RUNNING,
    SKIPPED,
    Reduction,
    as_module,
    check_closure,
    check_state_dict,
    checked_base,
    index_and_weight,
)
from ausam.optimizer.gradients import Decoupled
from ausam.optimizer.nonfinite import NonFinite, NonFiniteError, any_nonfinite, fill_with_nan
from ausam.optimizer.parameters import Memory
from ausam.optimizer.passes import ClosureStep, LossFn, PerSampleStep
from ausam.optimizer.step import Method, Step, StepContext, torch_modes
from ausam.optimizer.wrapper import OptimizerList, OptimizerWrapper

# How many steps of all our optimizers are unfinished: a backward during them is not the user's. In a list, because
# Python looks up every attribute of a class anew once one of its own has been written to.
UNFINISHED = [0]

COUNTERS = ("steps", "skipped", "samples_forward", "samples_backward")


# What ``backward`` has left in ``.grad`` since the last step or ``zero_grad``.
Grad = Literal["nothing", "gradient", "nonfinite"]


class SharpnessAware(OptimizerWrapper):
    """A torch optimizer whose gradient comes from a sharpness-aware method.

    ``opt.backward(loss_fn, *batch)`` replaces ``loss.backward()``. Everything after it stays the same: clipping,
    accumulation, ``scaler.step(opt)``, schedulers, checkpoints.

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
        base: the optimizer that takes the step. This class shares its ``param_groups``, ``state`` and ``defaults``. A
            list of optimizers if each trains a part of the model, such as ``[muon, adamw]``.
        method: computes the gradient: ``Plain()``, ``SAM(rho)``, ``ASAM(rho)``, ...
        model: the module that produces the losses. With DDP, the wrapped one. Needed for BatchNorm and no_sync. If
            several modules run in the loss function (a GAN's two networks), a list of them, the trained one first.
        sync_perturbation: average the perturbation's gradient over processes. False (default): each process perturbs
            with its own batch, as in the SAM paper. Sharded models (FSDP2) always average.
        nonfinite: what to do when a loss or gradient is inf or NaN. "skip" (default): ``step`` changes nothing, counts
            it in ``skipped`` and warns once. "raise": RuntimeError, with everything restored. "ignore": no check and no
            guarantee.
        seed: for a method's random decisions (RST's coin). The same in every process.
        replay: draw torch's random numbers (dropout, stochastic depth) once per step. Later passes over the same rows
            then see the same masks, as in the authors' JAX code. False (default): new numbers in each pass.

    Between steps the model is at ``w``, so you can evaluate, save or copy it at any time. If an error or Ctrl-C
    interrupts ``backward``, weights, buffers, gradients and modes are restored. Step hooks registered here receive this
    optimizer. All other hooks are the base's.
    """

    def __init__(
        self,
        base: Optimizer | Sequence[Optimizer],
        method: Method,
        model: nn.Module | Sequence[nn.Module],
        *,
        sync_perturbation: bool = False,
        nonfinite: NonFinite = "skip",
        seed: int = 0,
        replay: bool = False,
    ) -> None:
        # No super().__init__(): groups, state and defaults are the base's own.
        if isinstance(base, SharpnessAware):
            raise TypeError("The base is already a SharpnessAware. Wrap the plain torch optimizer, once.")
        if isinstance(base, (list, tuple)) and base and all(isinstance(o, Optimizer) for o in base):
            base = OptimizerList(base)
        base = checked_base(base, method)
        model = as_module(model)
        checked_value("SharpnessAware", "nonfinite", nonfinite, OneOf(get_args(NonFinite)))
        checked_value("SharpnessAware", "seed", seed, COUNT)
        checked_value("SharpnessAware", "replay", replay, YesNo())
        checked_value("SharpnessAware", "sync_perturbation", sync_perturbation, YesNo())
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
        self._memory = self._memory_at_step = Memory()  # now, and after the last step that was taken
        self._grad: Grad = "nothing"
        self._set_up(model)

    def _set_up(self, model: nn.Module) -> None:
        """Set up the parts that are neither saved nor copied."""
        self._context = StepContext(model, self.base, self.sync_perturbation)
        self._running = False  # whether a step is unfinished
        self._decoupled: Decoupled | None = None  # belongs to .grad, which torch does not copy either
        self._watched = False  # whether a hook notices what else runs a backward
        self._added = False  # whether it has noticed one between backward and step
        self._scaled = True  # whether the last backward may know a GradScaler's scale
        self._warned: set[str] = set()
        self._optimizer_step_pre_hooks = OrderedDict()  # they receive this optimizer, not the base
        self._optimizer_step_post_hooks = OrderedDict()

    @property
    def model(self) -> nn.Module:
        """The module whose losses are minimised. Set it if a framework wraps the model after the optimizer is built."""
        return self._context.parameters.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if model is not self.model:  # otherwise we would lose track of the gradients that DDP has not averaged
            self._context = StepContext(as_module(model), self.base, self.sync_perturbation)

    @property
    def pass_index(self) -> int:
        """Inside the loss function or closure: how often the method has called it before in this step.

        0 in the first pass. For a loss that differs in the second pass, and for what should happen once a step.
        """
        return self._context.pass_index

    # -- the step ------------------------------------------------------------------------------------------------

    def backward(
        self,
        loss_fn: LossFn,
        *batch: Any,
        index: Any = None,
        weight: Any = None,
        backward: Callable[[Tensor], Any] = Tensor.backward,
        reduce: Reduction = "mean",
        whole_batch: bool = False,
    ) -> Feedback:
        """Add the method's gradient of the mean loss to ``.grad`` and return the per-sample losses.

        Arguments:
            loss_fn: ``loss_fn(*batch)`` returns losses of shape ``(n,)``, or ``(losses, outputs)``. It must not reduce
                or back-propagate them. Called as often as the method needs.
            batch: the arguments of ``loss_fn``. Methods that use some of the rows select them from every tensor with n
                entries. ``loss_fn`` should capture what is not per sample, such as prototypes.
            index: dataset index of each sample, for the sampler's ``update``.
            weight: factor of each sample's loss (``sampler.weight(index)``). The mean stays over n.
            backward: how a scalar loss is back-propagated, e.g. ``lambda loss: scaler.scale(loss).backward()`` or
                ``accelerator.backward``.
            reduce: "mean" (default), or "sum" for a script whose loss has ``reduction="sum"``: its learning rate
                expects the gradient of the sum over the batch. The perturbation is the same.
            whole_batch: True if a sample's loss depends on the other samples (contrastive losses). A method that would
                evaluate some of the rows alone then raises an error.
        """
        index, weight = index_and_weight(loss_fn, index, weight, reduce)
        step = PerSampleStep(
            self._context,
            loss_fn,
            batch,
            index=index,
            weight=weight,
            backward=backward,
            total=reduce == "sum",
            whole=whole_batch,
            replay=self.replay,
        )
        if self.steps == 0 and self._grad == "nothing" and self._has_gradients():
            step.warnings.append(ADDS)
        feedback: Feedback = self._estimate(step)
        self._scaled = backward is not Tensor.backward
        return feedback

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the base optimizer's step. With a closure, compute the gradient first, by torch's protocol.

        The closure runs forward and backward and returns the loss. It runs as often as the method needs. ``step``
        returns its first value. Its gradient replaces ``.grad``, whether or not it clears the gradients. Use
        :meth:`accumulate` to add to what ``.grad`` holds. Methods that need rows or outputs raise an error.
        """
        if self._running:
            raise RuntimeError(RUNNING)
        for hook in [*self._optimizer_step_pre_hooks.values()]:
            changed = hook(self, (closure,), {})
            if changed is not None:
                (closure, *_), _ = changed
        loss = None
        if closure is not None:
            check_closure(closure)
            loss = self._estimate(ClosureStep(self._context, closure, replay=self.replay), replace=True)
        elif self._grad == "nothing" and not isinstance(self.method, Plain) and self._has_gradients():
            self._warn_once(BYPASSED.format(type(self.method).__name__), stacklevel=3)
        if self._added:
            self._warn_once(ADDED, stacklevel=3)
        if self._scaler_steps and not self._scaled:
            self._warn_once(NOT_SCALED, stacklevel=4)
        self._scaler_steps = False
        if self._grad == "nonfinite" and self._still_nonfinite():
            self._memory = self._memory_at_step
        else:
            if self._decoupled is None:
                self.base.step()
            else:
                vector = self._decoupled.rescaled()  # before the base sees the gradients
                self.base.step()
                self._decoupled.subtract(vector, self.param_groups)
            self.steps += 1
            self._memory_at_step = self._memory
        self._grad, self._added = "nothing", False
        for hook in [*self._optimizer_step_post_hooks.values()]:
            hook(self, (closure,), {})
        return loss

    def accumulate(self, closure: Callable[[], Any], *, scale: float = 1.0) -> Any:
        """Run a closure, as :meth:`step` does, and add its gradient to ``.grad``. ``step()`` follows.

        Arguments:
            closure: runs forward and backward and returns the loss. Its first value is returned. Clearing the
                gradients inside it has no effect: call ``zero_grad`` before or after.
            scale: the closure's factor on the loss before ``backward``: a GradScaler's scale, or a fraction of 1.
        """
        check_closure(closure)
        return self._estimate(ClosureStep(self._context, closure, scale=scale, replay=self.replay))

    # -- one step: begin, commit, undo ----------------------------------------------------------------------------

    def _estimate(self, step: Step, *, replace: bool = False) -> Any:
        """Let the method compute its gradient and leave it in ``.grad``, or leave everything unchanged."""
        if self._running:
            raise RuntimeError(RUNNING)
        undo, context, grad_mode = step.undo, self._context, torch.is_grad_enabled()
        UNFINISHED[0] += 1  # no call: Python would run a signal's handler after it, outside of the try
        try:
            undo.append(functools.partial(vars(self).update, vars(self).copy()))  # counters, memory, what .grad holds
            self._running = True
            if not grad_mode:
                torch.set_grad_enabled(True)  # a method may add to the losses, also under the user's no_grad
            context.parameters.refresh()
            memory = self._memory.copy_for(context.parameters)
            step.begin(memory.values, self.steps, self.seed, replace=replace)
            gradient = self.method.gradient(step)
            if not isinstance(gradient, list) or len(gradient) != len(step.params):
                what = f"{len(gradient)} entries" if isinstance(gradient, list) else f"a {type(gradient).__name__}"
                raise TypeError(
                    f"{type(self.method).__name__}.gradient returned {what}, but a list with one entry for each of the "
                    f"{len(step.params)} trained parameters is needed, e.g. what step.gradient() returns."
                )
            entries = present(gradient)
            if not entries and not isinstance(step, ClosureStep):  # a closure may skip a batch
                step.warnings.append(NO_GRADIENT)
            context.guard.undo_last_pass()
            computed = entries + step.evaluated
            if step.decoupled:
                computed += present(step.decoupled)
            accepted = self.nonfinite == "ignore" or not any_nonfinite(context.sync.group, computed)
            returned = step.result()
            memory.values = step.state
            if not accepted:
                for restore in reversed(undo):
                    restore()
                if self.nonfinite == "raise":
                    raise NonFiniteError(NOT_FINITE.format(self.steps))
                fill_with_nan(entries)
                step.warnings.append(SKIPPED)
            held, new = self._commit(
                step, gradient, memory if accepted else None, reached=bool(entries), replace=replace
            )
            if not grad_mode:
                torch.set_grad_enabled(False)
            self._running = False
            for message in step.warnings:
                self._warn_once(message, stacklevel=4)
        except BaseException:
            for restore in reversed(undo):
                restore()
            raise
        finally:
            UNFINISHED[0] -= 1  # no call here either, or an interrupt could come before the addition below
        if not self._watched:
            self._watch()
        if held:
            torch._foreach_add_(held, new)  # last, because an addition in place cannot be undone
        return returned

    def _commit(
        self, step: Step, gradient: Vector, memory: Memory | None, *, reached: bool, replace: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Leave the gradient in ``.grad`` and record the step. ``memory`` is None for a step that is not finite.

        Returns what remains to be added in place: the earlier gradients, and what is new.
        """
        sync, slots = self._context.sync, step.slots
        self.samples_forward += step.samples_forward
        self.samples_backward += step.samples_backward
        if replace:
            self._grad, self._decoupled = "nothing", None
        if memory is None:
            self.skipped += 1
            self._grad, self._decoupled = "nonfinite", None
        else:
            self._memory = memory
            if reached and self._grad == "nothing":
                self._grad = "gradient"
            if step.decoupled or self._decoupled is not None:
                self._decoupled = self._pending(step, gradient)
        must_average = sync.must_average
        if sync.active:
            sync.record(remembers=memory is not None and bool(memory.values), undo=step.undo)
        if not must_average:
            return slots.deposit(gradient)
        slots.put(average_gradients(slots.all, slots.total(gradient), sync.group))  # what earlier calls left, too
        return [], []

    def _pending(self, step: Step, gradient: Vector) -> Decoupled | None:
        """What follows the base's step: the decoupled vectors of this call and of those that .grad still holds."""
        vector, last, sync, slots = step.decoupled, self._decoupled, self._context.sync, step.slots
        if last is not None and last.params is step.params and any(g is not None for g in slots.held):
            held = last.rescaled(slots.held)
            vector = add(held, vector) if vector else held
        if not vector:
            return None
        total = slots.total(gradient)[: len(step.params)]
        if sync.must_average:
            vector, total = (average_gradients(step.params, v, sync.group) for v in (vector, total))
        return Decoupled(step.params, vector, norm(total))

    def _watch(self) -> None:
        """Notice, on the smallest parameter, a ``loss.backward()`` of the user's between ``backward`` and ``step``."""
        self._watched = True
        leaves = [p for p in self._context.parameters.params if p.is_leaf]
        if leaves:
            note = functools.partial(_note_backward, weakref.ref(self))
            hook = min(leaves, key=Tensor.numel).register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            weakref.finalize(self, hook.remove)

    def _has_gradients(self) -> bool:
        """Whether any ``.grad`` holds something other than zeros."""
        held = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        return any(g.is_sparse or bool(g.any()) for g in held if not g.is_meta)

    def _still_nonfinite(self) -> bool:
        """Whether ``.grad`` holds the gradient that was not finite: it may have been cleared or unscaled since."""
        held = present([p.grad for g in self.param_groups for p in g["params"]])
        return any_nonfinite(self._context.sync.group, held)

    def _warn_once(self, message: str, *, stacklevel: int) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(f"{message} This warning appears once.", RuntimeWarning, stacklevel=stacklevel)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the base's parameters."""
        if set_to_none and type(self.base).zero_grad is Optimizer.zero_grad:  # which takes longer: it is profiled
            for group in self.base.param_groups:
                for p in group["params"]:
                    p.grad = None
        else:
            self.base.zero_grad(set_to_none=set_to_none)
        if not self._running:  # inside a closure, the earlier gradients are set aside and stay
            self._grad, self._added, self._decoupled = "nothing", False, None

    def __repr__(self) -> str:
        count = sum(p.numel() for g in self.param_groups for p in g["params"])
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        groups = len(self.param_groups)
        return (
            f"SharpnessAware({type(self.base).__name__}, {self.method!r}, {type(self.model).__name__}): "
            f"{count:,} parameters in {groups} group{'s' * (groups > 1)}, {self.steps:,} steps{skipped}"
        )

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base's own state dict plus one key, so that the plain base optimizer loads it too."""
        ours = {
            "method": type(self.method).__name__,
            "memory": self._memory.state_dict(),
            **{counter: getattr(self, counter) for counter in COUNTERS},
        }
        return {**self.base.state_dict(), "ausam": ours}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load our state dict or a plain base optimizer's. With the latter, the method starts from scratch.

        A state that does not fit raises an error and changes nothing.
        """
        check_state_dict(state_dict)
        ours = state_dict.get("ausam", {})
        name = type(self.method).__name__
        other = ours.get("method", name) != name
        trained = self._context.parameters
        trained.refresh()
        memory = Memory() if other or "memory" not in ours else Memory.load(ours["memory"], trained.params)
        counters = {counter: ours.get(counter, 0) for counter in COUNTERS}
        # torch replaces state and groups and leaves the old ones alone, so the old references are the old state.
        modes = torch_modes(trained.kinds)  # a deepcopy that a signal interrupts leaves gradients switched off
        before = [(owner, vars(owner).copy()) for owner in (self, *getattr(self.base, "optimizers", [self.base]))]
        try:
            self.base.load_state_dict({k: v for k, v in state_dict.items() if k != "ausam"})
            vars(self).update(counters, _memory=memory, _memory_at_step=memory)
        except BaseException:
            for owner, attributes in before:
                vars(owner).update(attributes)
            modes()
            raise
        if other:
            warnings.warn(
                f"The state was saved with {ours['method']} and is loaded into {name}: "
                "the base optimizer's part is used, and the method starts from scratch.",
                stacklevel=2,
            )

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler leaves a bound `step` on the instance.
        transient = {"step", "_context", "_running", "_decoupled", "_warned"}
        kept = {k: v for k, v in self.__dict__.items() if k not in transient and not k.endswith("_hooks")}
        return {"model": self.model, **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state.pop("model")
        self.__dict__.update(state)
        self._set_up(model)


def _note_backward(reference: weakref.ref[SharpnessAware], _: Tensor) -> None:
    opt = None if UNFINISHED[0] else reference()
    if opt is not None and opt._grad == "gradient":
        opt._added = True
