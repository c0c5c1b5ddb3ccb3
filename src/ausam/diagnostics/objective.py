"""The loss of a model as a function of its weights, on given samples, that leaves the model as it was.

The weights are never written: :func:`torch.func.functional_call` hands the model other ones for the length of a call.
So there is nothing to restore but what a forward pass may change: training flags, buffers and random numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ausam.diagnostics.arguments import count
from ausam.diagnostics.batches import Batch, rows, size, taken
from ausam.losses import per_sample

LossFn = Callable[..., Any]


class Objective:
    """The mean loss of some samples, its gradient and its Hessian, at ``w`` and elsewhere.

        L(w + e) = 1/n sum_i L_i(w + e)

    Vectors are flat: all parameters that require a gradient, in the order of ``model.named_parameters()``. Use it
    inside ``with untouched(model)``. Sums run over the samples, so the result does not depend on how they are cut into
    chunks, beyond rounding.

    Arguments:
        model: what is measured; the module itself, not its DDP or FSDP wrapper.
        loss_fn: as for ``opt.backward``: ``loss_fn(*batch)`` calls the model and returns one loss per sample.
        batches: tuples of what ``loss_fn`` takes; read once and kept, so give as many samples as you want measured.
        chunk: samples per forward pass, >= 1: bounds the memory.
        samples: use the first so many samples, >= 1; None for all.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        batches: Iterable[Batch],
        *,
        chunk: int = 256,
        samples: int | None = None,
    ) -> None:
        self.model = model
        self.chunk = count("chunk", chunk)
        self.batches = taken(batches, samples)
        self.samples = sum(size(b) for b in self.batches)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("The model has no parameter that requires a gradient: there is nothing to measure.")
        if any(p.is_complex() for _, p in named):
            raise ValueError("The model has complex parameters, and diagnostics are written for real ones.")
        self.names = [name for name, _ in named]
        self.params = [p.detach() for _, p in named]
        self._caller = _Caller(model, loss_fn)
        # Every place in the model where a parameter hangs, each once. Left to itself (tie_weights=True),
        # functional_call visits a module that occurs twice in the model twice, and leaves the other weights in it.
        order = {id(p): i for i, (_, p) in enumerate(named)}
        self._places = [(name, order[id(p)]) for name, p in _hanging(model, "_parameters") if id(p) in order]
        self._fixed: dict[str, Tensor] = {}

    def moved(self, state: Mapping[str, Tensor]) -> Objective:
        """The same loss at the weights, and with the buffers, of a saved ``model.state_dict()``."""
        missing = [name for name in self.names if name not in state or state[name].shape != self._shape(name)]
        if missing:
            raise ValueError(
                f"The checkpoint does not hold {missing[0]} in the model's shape. Give the state_dict() of this model; "
                "of a compiled or wrapped one, without the prefix."
            )
        other = copy.copy(self)
        other.params = [
            state[name].detach().to(p.device, p.dtype) for name, p in zip(self.names, self.params, strict=True)
        ]
        trained = {name for name, _ in self._places}
        rest = [*_hanging(self.model, "_parameters"), *_hanging(self.model, "_buffers")]
        other._fixed = {
            name: state[name].detach().to(t.device, t.dtype)
            for name, t in rest
            if name in state and name not in trained
        }
        return other

    def on(self, batch: Batch) -> Objective:
        """The same loss on another batch."""
        other = copy.copy(self)
        other.batches, other.samples = [batch], size(batch)
        return other

    def _shape(self, name: str) -> torch.Size:
        return self.params[self.names.index(name)].shape

    # -- vectors -------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.params)

    def flat(self, parts: Sequence[Tensor]) -> Tensor:
        """One vector of what belongs to the parameters, on the device and in the type of the first."""
        first = self.params[0]
        return torch.cat([p.reshape(-1).to(first.device, first.dtype) for p in parts])

    def parts(self, vector: Tensor) -> list[Tensor]:
        """The inverse of :meth:`flat`."""
        pieces = torch.split(vector, [p.numel() for p in self.params])
        return [v.view(p.shape).to(p.device, p.dtype) for v, p in zip(pieces, self.params, strict=True)]

    def weights(self) -> Tensor:
        """The weights as one vector, a copy."""
        return self.flat(self.params)

    def at(self, shift: Tensor | None) -> list[Tensor]:
        """The parameters of ``w + shift``."""
        if shift is None:
            return self.params
        return [p + v for p, v in zip(self.params, self.parts(shift), strict=True)]

    # -- evaluating ----------------------------------------------------------------------------------------------

    def call(self, params: Sequence[Tensor], batch: Batch) -> Tensor:
        """Per-sample losses of one batch with these parameters."""
        named = {f"model.{name}": params[i] for name, i in self._places}
        named |= {f"model.{name}": t for name, t in self._fixed.items()}
        losses: Tensor = functional_call(self._caller, named, batch, tie_weights=False)
        return losses

    def chunks(self) -> Iterator[Batch]:
        """All samples, at most ``chunk`` at a time."""
        for batch in self.batches:
            n = size(batch)
            for start in range(0, n, self.chunk):
                yield rows(batch, slice(start, min(start + self.chunk, n)), n)

    @torch.no_grad()
    def losses(self, shift: Tensor | None = None) -> Tensor:
        """Loss of each sample at ``w + shift``."""
        params = self.at(shift)
        return torch.cat([self.call(params, batch) for batch in self.chunks()])

    def loss(self, shift: Tensor | None = None) -> float:
        """Mean loss at ``w + shift``."""
        return float(self.losses(shift).double().mean())

    def gradient(self, shift: Tensor | None = None) -> Tensor:
        """Gradient of the mean loss at ``w + shift``; zero for a parameter that the loss does not reach."""
        return self._sum(lambda total, _: total, self.at(shift))

    def hvp(self, vector: Tensor) -> Tensor:
        """The Hessian of the mean loss at ``w``, times a vector: a second backward through the gradient."""
        parts = self.parts(vector)

        def product(total: Tensor, params: list[Tensor]) -> Tensor | None:
            first = torch.autograd.grad(total, params, create_graph=True, allow_unused=True)
            terms = [(g * v).sum() for g, v in zip(first, parts, strict=True) if g is not None and g.requires_grad]
            return torch.stack([t.to(terms[0].device) for t in terms]).sum() if terms else None

        return self._sum(product, self.params)

    def _sum(self, scalar: Callable[[Tensor, list[Tensor]], Tensor | None], at: Sequence[Tensor]) -> Tensor:
        """Mean over the samples of the gradient of a scalar that is made from the summed losses of a chunk."""
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


def _hanging(model: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of every place of a model, each once, whatever hangs in several of them."""
    for prefix, m in model.named_modules():
        for name, t in getattr(m, kind).items():
            if t is not None:
                yield f"{prefix}.{name}" if prefix else name, t


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
                "loss_fn put the model into training mode. Diagnostics need a fixed function of the weights: in "
                "training mode BatchNorm mixes the samples of a batch and dropout draws at random. Leave model.train() "
                "out of it."
            )
        return losses
