"""Run: the whole vocabulary of a method, and the one owner of everything that all methods need alike.

A method evaluates losses and gradients here or at shifted weights and returns one gradient. DDP's no_sync, BatchNorm,
row weights, clearing and keeping gradients, restoring weights and collecting the feedback happen here and nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_map

from ausam import buffers, processes
from ausam.losses import per_sample
from ausam.random import States, generator, replayed, torch_states
from ausam.tensors import Vector, local
from ausam.workspace import Workspace

LossFn = Callable[..., Any]

NO_OUTPUTS = (
    "This method needs the model's outputs, but loss_fn returned the losses alone. Return both: "
    'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
)


class Method(Protocol):
    """What a method is: a declaration of what it measures, and one function."""

    @property
    def sharpness(self) -> str:
        """Whether it evaluates the loss at perturbed weights: "always", "sometimes" or "never"."""

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""

    def gradient(self, run: Run) -> Vector:
        """The gradient that the base optimizer shall use, one entry a parameter."""


class Run:
    """One batch in the hands of a method."""

    def __init__(
        self,
        workspace: Workspace,
        state: dict[str, Any],
        step: int,
        loss_fn: LossFn | None,
        batch: tuple[Any, ...] = (),
        index: Tensor | None = None,
        weight: Tensor | None = None,
        backward: Callable[[Tensor], Any] = Tensor.backward,
    ) -> None:
        groups = workspace.base.param_groups
        self.params: list[nn.Parameter] = [p for g in groups for p in g["params"] if p.requires_grad]
        # The method's memory, written back only if the step turns out finite. It begins afresh when a layer is frozen
        # or thawed, for its vectors are of the parameters that were there.
        self.trained = [id(p) for p in self.params]
        self.state = dict(state) if workspace.trained in ([], self.trained) else {}
        self.step = step
        self.index = index
        self.scale: Tensor | float = 1.0  # of the last backward: GradScaler's factor, 1 without one
        self.loss = self.perturbed = torch.empty(0)
        self.total: Tensor | float = 0.0  # of all losses seen: not finite if one of them is not
        self.samples_forward = self.samples_backward = 0
        self.group = processes.group_of(workspace.model, self.params)  # None: one process
        self._groups = groups
        self._workspace = workspace
        self._loss_fn = loss_fn
        self._batch = batch
        self._weight = weight
        self._backward = backward
        self._outputs: Any = None
        self.outputs_at_w: Any = None  # of all rows, detached; those of the first pass if none is at w
        self._shifted = False
        self._moved = ""  # which forward has moved the buffers: none yet, "here" or "shifted"
        self._pending: buffers.Snapshot | None = None
        self._torch_states: States | None = None  # of torch's generators before the first pass, to replay them
        self._modules = list(workspace.model.modules())  # walked once a step: it is what a step costs beside its passes
        mine = set(self.params)
        # Parameters of the model that another optimizer owns: their gradient is that of the last pass, not of all.
        every = dict.fromkeys(p for m in self._modules for p in m._parameters.values() if p is not None)
        self._others = [p for p in every if p.requires_grad and p not in mine]
        self._last: Vector = [None] * len(self._others)

    @property
    def names(self) -> list[str]:
        """The model's name for each of ``params``."""
        return self._workspace.names(self.params)

    def radius(self, rho: float) -> float | list[float]:
        """``rho``, or one radius a parameter if a parameter group carries a ``rho`` of its own."""
        if not any("rho" in g for g in self._groups):
            return rho
        return [float(g.get("rho", rho)) for g in self._groups for p in g["params"] if p.requires_grad]

    @property
    def rng(self) -> Generator:
        """A new generator for this step, the same in every process: for decisions that all must share."""
        return generator(self._workspace.seed, self.step)

    @property
    def momentum(self) -> Vector:
        """The base's first moment (SGD's momentum_buffer, Adam's exp_avg); None for a parameter that has none yet."""
        states = [self._workspace.base.state.get(p, {}) for p in self.params]
        return [s.get("momentum_buffer", s.get("exp_avg")) for s in states]

    @property
    def buffers(self) -> list[Tensor]:
        """The model's floating-point buffers, e.g. BatchNorm's statistics, as they are now."""
        return [b for b in self._workspace.model.buffers() if b.is_floating_point()]

    @property
    def outputs(self) -> Any:
        """What ``loss_fn`` returned beside the losses in the last forward."""
        if self._outputs is None:
            raise TypeError(NO_OUTPUTS)
        return self._outputs

    def agreed(self, value: Tensor) -> Tensor:
        """The mean of a scalar over the processes that train the model: for decisions that all must share."""
        return value if self.group is None else processes.mean(value, self.group)

    # -- evaluating ----------------------------------------------------------------------------------------------

    def forward(self, rows: Tensor | None = None, *, grad: bool = True) -> Tensor:
        """Per-sample losses at the present weights, of all rows or some; ``grad=False`` only looks."""
        if self._loss_fn is None:
            raise RuntimeError(
                "This method needs per-sample losses, which opt.step(closure) cannot give. "
                "Call opt.backward(loss_fn, *batch) and then opt.step()."
            )
        self._settle(grad)
        batch = self._batch if rows is None else tree_map(lambda x: self._select(x, rows), self._batch)
        with torch.set_grad_enabled(grad), self._noise():
            result = self._loss_fn(*batch)
        losses, self._outputs = result if isinstance(result, tuple) else (result, None)
        losses = per_sample(losses, None if rows is None else len(rows), self._expected())
        self.samples_forward += len(losses)
        self._record(losses.detach(), rows)
        if rows is None and (not self._shifted or self.outputs_at_w is None):
            self.outputs_at_w = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self._outputs)
        return losses

    def backward(self, losses: Tensor, rows: Tensor | None = None) -> Vector:
        """Gradient of the (weighted) mean of ``losses``, one entry a parameter."""
        if self._weight is not None:
            weight = self._weight if rows is None else self._weight[rows.to(self._weight.device)]
            losses = losses * weight.to(losses.device, losses.dtype)
        self.samples_backward += len(losses)
        self._clear()
        for p in self._workspace.reached if self._workspace.averages else ():
            # DDP averages what any pass since the last time has reached, and breaks down if there is nothing there.
            p.grad = torch.zeros_like(p)
        mean = losses.mean()
        if mean.requires_grad:
            mean.register_hook(self._note_scale)  # type: ignore[no-untyped-call]
        self._backward(mean)
        return self._collect()

    def gradient(self, rows: Tensor | None = None, *, sync: bool = True) -> Vector:
        """Forward and backward; with ``sync=False`` processes do not average the result."""
        # DDP decides in forward whether the backward will synchronise, so both are inside.
        with contextlib.nullcontext() if sync else self._no_sync():
            return self.backward(self.forward(rows), rows)

    def predict(self, values: Vector, buffers: Sequence[Tensor]) -> Any:
        """The outputs in evaluation mode at other weights and buffers (a teacher's), without gradient or trace."""
        if self._loss_fn is None:
            self.forward()  # refuses: a closure has no outputs
        self._settle(False)
        model = self._workspace.model
        training = [m for m in model.modules() if m.training]
        model.eval()
        try:
            with self.at(values), torch.no_grad():
                for b, value in zip(self.buffers, buffers, strict=True):
                    b.copy_(value)
                result = self._loss_fn(*self._batch)  # type: ignore[misc]
        finally:
            for m in training:
                m.training = True
        if not isinstance(result, tuple):
            raise TypeError(NO_OUTPUTS)
        self.samples_forward += len(result[0])
        return result[1]

    # -- moving the weights --------------------------------------------------------------------------------------

    def shifted(self, e: Vector) -> contextlib.AbstractContextManager[None]:
        """The weights at ``w + e`` inside, at ``w`` bit for bit afterwards, whatever happens."""
        moved = [(p, t) for p, t in zip(self.params, e, strict=True) if t is not None]
        return self._moved_by([p for p, _ in moved], [t for _, t in moved], torch._foreach_add_)

    def at(self, values: Vector) -> contextlib.AbstractContextManager[None]:
        """The weights at ``values`` inside, at ``w`` bit for bit afterwards."""
        moved = [(p, t) for p, t in zip(self.params, values, strict=True) if t is not None]
        return self._moved_by([p for p, _ in moved], [t for _, t in moved], torch._foreach_copy_)

    @contextlib.contextmanager
    def _moved_by(self, params: list[Tensor], values: list[Tensor], move: Any) -> Iterator[None]:
        if self._shifted:
            raise RuntimeError(
                "The weights are shifted already; leave the first `with run.shifted(...)` before the next."
            )
        saved = self._workspace.copies(params)
        self._shifted = True
        try:
            with torch.no_grad():
                if params:
                    mine = [local(p) for p in params]
                    torch._foreach_copy_(saved, mine)
                    move(mine, [local(t) for t in values])
            values.clear()  # the second pass has room for its activations
            self._forget_casts()
            yield
        finally:
            with torch.no_grad():
                if params:
                    torch._foreach_copy_([local(p) for p in params], saved)
            self._forget_casts()
            self._shifted = False

    # -- beginning and end (called by the optimizer) -------------------------------------------------------------

    def __enter__(self) -> Run:
        self._kept = [(p, p.grad) for p in (*self.params, *self._others)]
        self._before = buffers.save(self._modules)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._settle(None)
        if kind is not None:
            buffers.restore(self._before)
        for p, grad in self._kept:
            p.grad = grad

    def undo_buffers(self) -> None:
        """Buffers as they were before the step: for a step that turned out not to be finite."""
        buffers.restore(self._before)

    def deposit(self, gradient: Vector) -> None:
        """Add the gradient to ``.grad``, as loss.backward() would, and average what earlier calls left unaveraged."""
        for p, g in zip((*self.params, *self._others), (*gradient, *self._last), strict=True):
            if g is not None and p.grad is not None:
                p.grad.add_(g)
            elif g is not None:
                p.grad = g
        if self.group is not None:
            self._workspace.settle((*self.params, *self._others), bool(self.state), self.group)

    # -- inner workings ------------------------------------------------------------------------------------------

    def _settle(self, grad: bool | None) -> None:
        """Put back what the last forward moved unless it was the one of the step that may; see to the next one's.

        Restoring waits until here because autograd still holds the buffers between a forward and its backward.
        """
        if self._pending is not None:
            buffers.restore(self._pending)
            self._pending = None
        if grad is None:
            return
        if grad and self._moved != "here" and (not self._shifted or not self._moved):
            if self._moved == "shifted":
                buffers.restore(self._before)
            self._moved = "shifted" if self._shifted else "here"
        else:
            self._pending = buffers.save(self._modules)

    def _noise(self) -> contextlib.AbstractContextManager[None]:
        """With ``replay``, the random numbers of the first pass again in all later ones: the same dropout masks."""
        if not self._workspace.replay:
            return contextlib.nullcontext()
        if self._torch_states is None:
            self._torch_states = torch_states(p.device for p in self.params)
            return contextlib.nullcontext()
        return replayed(self._torch_states)

    def _forget_casts(self) -> None:
        """Drop what was made of the weights before they moved: an enclosing autocast's casts, FSDP's whole weights."""
        torch.clear_autocast_cache()
        if self.params and processes.sharded(self.params[0]):
            for m in self._modules:
                reshard: Any = getattr(m, "reshard", None)
                if reshard is not None:
                    reshard()

    def _expected(self) -> int | None:
        if self.loss.numel():
            return self.loss.numel()
        return None if self.index is None else len(self.index)

    def _record(self, losses: Tensor, rows: Tensor | None) -> None:
        losses = losses.float()
        self.total = self.total + losses.sum()
        if not self.loss.numel():
            n = len(losses)
            if self._weight is not None and len(self._weight) != n:
                raise ValueError(f"weight has {len(self._weight)} entries for {n} losses. Give one a sample.")
            self.loss = losses.new_full((n,), torch.nan)
            self.perturbed = losses.new_full((n,), torch.nan)
        place = self.perturbed if self._shifted else self.loss
        place[slice(None) if rows is None else rows] = losses

    def _select(self, x: Any, rows: Tensor) -> Any:
        if isinstance(x, Tensor) and x.dim() > 0 and len(x) == self.loss.numel():
            return x[rows.to(x.device)]
        return x

    def _clear(self) -> None:
        for p in (*self.params, *self._others):
            p.grad = None

    def _note_scale(self, factor: Tensor) -> None:
        # What reaches the mean loss in the backward pass is the factor it was multiplied with on the way.
        self.scale = factor.detach()

    def _collect(self) -> Vector:
        gradient, self._last = ([_own(p.grad) for p in params] for params in (self.params, self._others))
        if any(g is not None and g.layout != torch.strided for g in gradient):
            raise RuntimeError(
                "A gradient is sparse, and a norm over all parameters needs dense ones. "
                "Build the embedding with sparse=False."
            )
        self._clear()
        if getattr(self._workspace.model, "find_unused_parameters", False):
            w, found = self._workspace, zip((*self.params, *self._others), (*gradient, *self._last), strict=True)
            w.reached = set() if w.averages else w.reached | {p for p, g in found if g is not None}
        if gradient and processes.sharded(self.params[0]) and all(g is None for g in gradient):
            raise RuntimeError(
                "FSDP kept the gradients to itself, as set_requires_gradient_sync(False) asks it to, so there is none "
                "to go on with. Leave it True: opt.backward adds up the averaged gradients of several calls itself."
            )
        return gradient

    def _no_sync(self) -> contextlib.AbstractContextManager[Any]:
        no_sync = getattr(self._workspace.model, "no_sync", None)
        if no_sync is None or self._workspace.sync_perturbation:
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[Any] = no_sync()
        return found


def _own(grad: Tensor | None) -> Tensor | None:
    """The gradient, but not as a view: DDP's gradient_as_bucket_view would write the next pass into the same memory."""
    return grad.clone() if grad is not None and grad._is_view() else grad
