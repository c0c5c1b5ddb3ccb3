"""The loss of a model on given samples, as a function of its weights.

The model is never written: :func:`torch.func.functional_call` substitutes weights and buffers during a call.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from ausam.common.rows import select_rows
from ausam.common.settings import Range, checked_value
from ausam.common.tensors import CPU
from ausam.optimizer.errors import per_sample

LossFn = Callable[..., Any]
Batch = tuple[Any, ...]


class Objective:
    """The mean loss of some samples, its gradient and its Hessian, at ``w`` or at other weights.

        L(w + e) = 1/n sum_i L_i(w + e)

    Vectors are flat: all parameters that require a gradient, in the order of ``model.named_parameters()``. Use it
    inside ``with eval_mode(model)``. Sums run over samples, so the chunk size affects nothing but rounding.

    Arguments:
        model: the module to measure, without a DDP or FSDP wrapper.
        loss_fn: as for ``opt.backward``: ``loss_fn(*batch)`` calls the model and returns one loss per sample.
        batches: tuples of ``loss_fn``'s arguments. Read once and kept in memory.
        chunk: samples per forward pass, >= 1. Bounds the memory.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        batches: Iterable[Batch],
        *,
        chunk: int = 256,
    ) -> None:
        self.chunk = count("chunk", chunk)
        self.batches = as_tuples(batches)
        self.samples = sum(size(b) for b in self.batches)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("The model has no parameter that requires a gradient, so there is nothing to measure.")
        if any(p.is_complex() for _, p in named):
            raise ValueError("The model has complex parameters, but the diagnostics support real ones only.")
        self.params = [p.detach() for _, p in named]
        self._caller = _Caller(model, loss_fn)
        # Every name under which the model holds a parameter, listed once. With tie_weights=True, functional_call
        # would swap a module that occurs twice in the model twice, and leave the substituted weights in it.
        order = {id(p): i for i, (_, p) in enumerate(named)}
        self._places = [(name, order[id(p)]) for name, p in _held(model, "_parameters") if id(p) in order]
        self._fixed = dict(_held(model, "_buffers"))
        self._require_gradient()

    def _require_gradient(self) -> None:
        """Raise if no parameter gets a gradient from the losses. A gradient of zero is one."""
        for batch in self.chunks():
            with torch.enable_grad():
                params = [p.detach().requires_grad_() for p in self.params]
                total = self.call(params, batch).sum()
                if total.requires_grad and any(
                    g is not None for g in torch.autograd.grad(total, params, allow_unused=True)
                ):
                    return
        raise ValueError(
            "No parameter of the model gets a gradient from loss_fn, so its loss would look perfectly flat. Build the "
            "loss from the model that you pass, not from a copy or another one, and without detach() or no_grad(): "
            'loss_fn = lambda x, y: F.cross_entropy(model(x), y, reduction="none").'
        )

    def on(self, batch: Batch) -> Objective:
        """The same loss on another batch."""
        other = copy.copy(self)
        other.batches, other.samples = [batch], size(batch)
        return other

    # -- vectors -------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.params)

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate one tensor per parameter into a vector, with the device and dtype of the first parameter."""
        first = self.params[0]
        return torch.cat([p.reshape(-1).to(first.device, first.dtype) for p in parts])

    def parts(self, vector: Tensor) -> list[Tensor]:
        """The inverse of :meth:`flat`."""
        pieces = torch.split(vector, [p.numel() for p in self.params])
        return [v.view(p.shape).to(p.device, p.dtype) for v, p in zip(pieces, self.params, strict=True)]

    def weights(self) -> Tensor:
        """A copy of the weights as one vector."""
        return self.flat(self.params)

    def normal(self, rng: Generator) -> Tensor:
        """A standard normal vector."""
        return normal(self.weights(), rng)

    def at(self, shift: Tensor | None) -> list[Tensor]:
        """The parameters of ``w + shift``."""
        if shift is None:
            return self.params
        return [p + v for p, v in zip(self.params, self.parts(shift), strict=True)]

    # -- evaluating ----------------------------------------------------------------------------------------------

    def call(self, params: Sequence[Tensor], batch: Batch) -> Tensor:
        """Per-sample losses of one batch with these parameters. Buffers are copies, which a forward may write."""
        named = {f"model.{name}": params[i] for name, i in self._places}
        named |= {f"model.{name}": t.detach().clone() for name, t in self._fixed.items()}
        losses: Tensor = functional_call(self._caller, named, batch, tie_weights=False)
        return losses

    def chunks(self) -> Iterator[Batch]:
        """All samples, at most ``chunk`` at a time."""
        for batch in self.batches:
            yield from parts(batch, self.chunk)

    @torch.no_grad()
    def losses(self, shift: Tensor | None = None) -> Tensor:
        """Loss of each sample at ``w + shift``."""
        params = self.at(shift)
        return torch.cat([self.call(params, batch) for batch in self.chunks()])

    def loss(self, shift: Tensor | None = None) -> float:
        """Mean loss at ``w + shift``."""
        return float(self.losses(shift).double().mean())

    def gradient(self, shift: Tensor | None = None) -> Tensor:
        """Gradient of the mean loss at ``w + shift``. Zero for a parameter that the loss does not reach."""
        return self._mean_gradient(lambda total, _: total, self.at(shift))

    def hvp(self, vector: Tensor) -> Tensor:
        """The Hessian of the mean loss at ``w`` times a vector, by a second backward through the gradient."""
        parts = self.parts(vector)

        def product(total: Tensor, params: list[Tensor]) -> Tensor | None:
            if not total.requires_grad:
                return None
            first = torch.autograd.grad(total, params, create_graph=True, allow_unused=True)
            terms = [(g * v).sum() for g, v in zip(first, parts, strict=True) if g is not None and g.requires_grad]
            return torch.stack([t.to(terms[0].device) for t in terms]).sum() if terms else None

        return self._mean_gradient(product, self.params)

    def _mean_gradient(self, scalar: Callable[[Tensor, list[Tensor]], Tensor | None], at: Sequence[Tensor]) -> Tensor:
        """Mean over the samples of the gradient of a scalar computed from the summed losses of a chunk."""
        result = [torch.zeros_like(p) for p in self.params]
        with torch.enable_grad():
            for batch in self.chunks():
                params = [p.detach().requires_grad_() for p in at]
                value = scalar(self.call(params, batch).sum(), params)
                if value is None or not value.requires_grad:
                    continue
                for r, g in zip(result, torch.autograd.grad(value, params, allow_unused=True), strict=True):
                    if g is not None:
                        r += g
        return self.flat(result) / self.samples


class _Caller(nn.Module):
    """The loss function as a module, so that functional_call reaches the model that it closes over."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, *batch: Any) -> Tensor:
        result = self.loss_fn(*batch)
        losses = per_sample(result[0] if isinstance(result, tuple) else result, size(batch))
        if any(m.training for m in self.model.modules()):
            raise RuntimeError(
                "loss_fn put the model into training mode. Diagnostics need a fixed function of the weights, but in "
                "training mode BatchNorm mixes the samples of a batch and dropout is random. Remove model.train() "
                "from loss_fn."
            )
        return losses


def _held(model: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Every name under which the model holds a parameter or buffer. A shared tensor appears under each of its names."""
    for prefix, m in model.named_modules():
        for name, t in getattr(m, kind).items():
            if t is not None:
                yield f"{prefix}.{name}" if prefix else name, t


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode. On exit restore training flags and torch's random state.

    A BatchNorm layer without running statistics raises an error, because it normalises by the batch even in eval mode.
    DDP and FSDP wrappers raise an error too. An inference mode around it is switched off: all gradients would be zero.
    """
    modules = list(model.modules())
    for m in modules:
        kind = type(m).__name__
        if isinstance(m, _BatchNorm) and m.running_mean is None:
            raise ValueError(
                f"{kind} has no running statistics, so it normalises by the batch even in eval mode and no sample has "
                "a loss or gradient of its own. Build it with track_running_stats=True."
            )
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel") or hasattr(m, "unshard"):
            raise ValueError(
                f"The model is wrapped in {kind}, which intercepts its gradients. Pass the wrapped module "
                "(model.module) to the diagnostics, use it in loss_fn, and measure in one process."
            )
    flags = [(m, m.training) for m in modules]
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        # Only the plain form of attention has a double backward, and BatchNorm's flag must not be compiled in.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for kind in {d.type for d in devices} or {"cuda"}:
            stack.enter_context(torch.random.fork_rng([d for d in devices if d.type == kind], device_type=kind))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
        try:
            for m in modules:
                m.training = False
            yield
        finally:
            for m, flag in flags:
                m.training = flag


# -- batches and arguments ---------------------------------------------------------------------------------------------


def size(batch: Batch) -> int:
    """Number of samples: the length of the first tensor."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return len(leaf)
    raise TypeError("The batch holds no tensor with a first dimension, so its number of samples is unknown.")


def parts(batch: Batch, m: int) -> Iterator[Batch]:
    """A batch in parts of ``m`` samples, cut as ``opt.backward`` does. The last may be smaller."""
    n = size(batch)
    for start in range(0, n, m):
        yield batch if n <= m else select_rows(batch, torch.arange(start, min(start + m, n), device=CPU), n)


def as_tuples(batches: Iterable[Batch]) -> list[Batch]:
    """The batches as a list of tuples. At least one."""
    kept: list[Batch] = []
    for batch in batches:
        if not isinstance(batch, (tuple, list)):
            raise TypeError(
                f"A batch is a {type(batch).__name__}, but batches is a list of tuples of loss_fn's arguments: "
                "[(x, y)], not (x, y) and not [x]."
            )
        kept.append(tuple(batch))
    if not kept:
        raise ValueError("batches is empty. Pass a list rather than an iterator that is consumed once.")
    return kept


def normal(like: Tensor, rng: Generator) -> Tensor:
    """A standard normal vector as long as this one, drawn on the CPU so that every device gets the same one."""
    return torch.randn(len(like), generator=rng, dtype=torch.float64).to(like.device, like.dtype)


def count(name: str, value: Any, low: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``low``. Raise otherwise."""
    number: int = checked_value("diagnostics", name, value, Range(low=low, whole=True))
    return number


def positive(name: str, value: Any) -> float:
    """Return ``value`` if it is a finite number above 0. Raise otherwise."""
    return float(checked_value("diagnostics", name, value, Range(low=0.0, low_open=True)))
