"""The loss of a model on given samples, as a function of its weights.

The model's weights are never written: :func:`torch.func.functional_call` substitutes others during a call. Only what a
forward pass may change has to be restored afterwards: training flags, buffers and random state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.func import functional_call

from ausam.diagnostics.arguments import count, generator, normal
from ausam.diagnostics.batches import Batch, rows, size, take_samples
from ausam.diagnostics.untouched import untouched
from ausam.optimizer.recorder import per_sample

LossFn = Callable[..., Any]

UNREACHED = (
    "No parameter of the model gets a gradient from loss_fn, so its loss would look perfectly flat. Most likely "
    "loss_fn uses another model than the one you passed, or a copy of it. Or it uses frozen parameters only, or hides "
    "the model from autograd with detach() or no_grad(). Build the loss from the model that you pass:\n"
    '    losses = lambda x, y: F.cross_entropy(model(x), y, reduction="none")\n'
    "    curve = sharpness(model, losses, batches)"
)


class Objective:
    """The mean loss of some samples, its gradient and its Hessian, at ``w`` or at other weights.

        L(w + e) = 1/n sum_i L_i(w + e)

    Vectors are flat: all parameters that require a gradient, in the order of ``model.named_parameters()``. Use it
    inside ``with untouched(model)``. Sums run over samples, so the chunk size affects nothing but rounding. A loss from
    which no parameter gets a gradient is refused (see :meth:`check`).

    Arguments:
        model: the module to measure, without a DDP or FSDP wrapper.
        loss_fn: as for ``opt.backward``: ``loss_fn(*batch)`` calls the model and returns one loss per sample.
        batches: tuples of ``loss_fn``'s arguments; read once and kept in memory.
        chunk: samples per forward pass, >= 1; bounds the memory.
        samples: how many samples to use, from the first, >= 1; None for all.
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
        self.batches = self._all = take_samples(batches, samples)
        self.samples = sum(size(b) for b in self.batches)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("The model has no parameter that requires a gradient, so there is nothing to measure.")
        if any(p.is_complex() for _, p in named):
            raise ValueError("The model has complex parameters, but the diagnostics support real ones only.")
        self.names = [name for name, _ in named]
        self.params = [p.detach() for _, p in named]
        self._caller = _Caller(model, loss_fn)
        # Every name under which the model holds a parameter, listed once. With tie_weights=True, functional_call
        # would swap a module that occurs twice in the model twice, and leave the substituted weights in it.
        order = {id(p): i for i, (_, p) in enumerate(named)}
        self._places = [(name, order[id(p)]) for name, p in _held(model, "_parameters") if id(p) in order]
        self._fixed: dict[str, Tensor] = {}

    def moved(self, state: Mapping[str, Tensor]) -> Objective:
        """The same loss with the weights and buffers of a saved ``model.state_dict()``."""
        missing = [name for name in self.names if name not in state or state[name].shape != self._shape(name)]
        if missing:
            raise ValueError(
                f"The checkpoint has no {missing[0]} of the model's shape. Pass a state_dict() of this model; if it "
                "was compiled or wrapped, remove the prefix from the names."
            )
        other = copy.copy(self)
        other.params = [
            state[name].detach().to(p.device, p.dtype) for name, p in zip(self.names, self.params, strict=True)
        ]
        trained = {name for name, _ in self._places}
        rest = [*_held(self.model, "_parameters"), *_held(self.model, "_buffers")]
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
        return _chunks(self.batches, self.chunk)

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
        """The Hessian of the mean loss at ``w`` times a vector, by a second backward through the gradient."""
        parts = self.parts(vector)

        def product(total: Tensor, params: list[Tensor]) -> Tensor | None:
            if not total.requires_grad:
                return None
            first = torch.autograd.grad(total, params, create_graph=True, allow_unused=True)
            terms = [(g * v).sum() for g, v in zip(first, parts, strict=True) if g is not None and g.requires_grad]
            return torch.stack([t.to(terms[0].device) for t in terms]).sum() if terms else None

        return self._sum(product, self.params)

    def _sum(self, scalar: Callable[[Tensor, list[Tensor]], Tensor | None], at: Sequence[Tensor]) -> Tensor:
        """Mean over the samples of the gradient of a scalar computed from the summed losses of a chunk."""
        result = [torch.zeros_like(p) for p in self.params]
        reached = False
        with torch.enable_grad():
            for batch in self.chunks():
                params = [p.detach().requires_grad_() for p in at]
                value = scalar(self.call(params, batch).sum(), params)
                if value is None or not value.requires_grad:
                    continue
                for r, g in zip(result, torch.autograd.grad(value, params, allow_unused=True), strict=True):
                    if g is not None:
                        r += g
                        reached = True
        if not reached:
            self.check()
        return self.flat(result) / self.samples

    # -- does the loss depend on the model? ----------------------------------------------------------------------

    def check(self, *, by_value: bool = False) -> None:
        """Raise if no parameter gets a gradient from the losses, on any of the samples that were passed at first.

        A gradient of zero counts: it is what autograd finds at a minimum. With ``by_value``, for what needs no
        gradient, a ``loss_fn`` that hides its graph passes if other weights change its losses.
        Cost: one forward pass of one chunk; over all samples if the loss is refused. Random state is left as it was.
        """
        with untouched(self.model):
            for batch in _chunks(self._all, self.chunk):
                if self.traced(batch)[1] or (by_value and self._responds(batch)):
                    return
        raise ValueError(UNREACHED)

    def traced(self, batch: Batch) -> tuple[Tensor, bool]:
        """Per-sample losses of one batch at ``w``, and whether a parameter gets a gradient from them."""
        try:
            with torch.enable_grad():
                params = [p.detach().requires_grad_() for p in self.params]
                losses = self.call(params, batch)
        except RuntimeError as error:
            if "inference" not in str(error).lower():
                raise
            # Autograd does not record tensors made in inference mode, but torch.func can differentiate them.
            return self._values(batch), self._responds(batch)
        return losses.detach(), _reaches(losses, params)

    @torch.no_grad()
    def _values(self, batch: Batch) -> Tensor:
        return self.call(self.params, batch)

    def _responds(self, batch: Batch) -> bool:
        """Whether other weights change the losses of a batch, by more than they differ between two equal calls."""
        rng = generator(0)

        def moved(t: Tensor) -> Tensor:
            return t + (t.abs() + 0.01) * normal(t.numel(), rng, t).view(t.shape) if t.is_floating_point() else t

        other = copy.copy(self)
        other.params = [moved(p) for p in self.params]
        other._fixed = {name: moved(t) for name, t in self._fixed.items()}
        losses = []
        for objective in (self, self, other):
            with untouched(self.model):  # the same random numbers each time
                losses.append(objective._values(batch))
        here, again, there = losses
        return not bool((there - here).abs().max() <= 10 * (again - here).abs().max())  # NaN counts as a change


def _chunks(batches: Iterable[Batch], chunk: int) -> Iterator[Batch]:
    for batch in batches:
        n = size(batch)
        for start in range(0, n, chunk):
            yield rows(batch, slice(start, min(start + chunk, n)), n)


def _reaches(losses: Tensor, params: Sequence[Tensor]) -> bool:
    """Whether the graph of the losses leads to a parameter. Nothing is differentiated."""
    if not losses.requires_grad:
        return False
    ends = {get_gradient_edge(p).node for p in params}
    todo, seen = [get_gradient_edge(losses).node], set[Node]()
    while todo:
        node = todo.pop()
        if node in ends:
            return True
        if node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions if before is not None]
    return False


def _held(model: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Every name under which the model holds a parameter or buffer; a shared tensor appears under each of its names."""
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
                "loss_fn put the model into training mode. Diagnostics need a fixed function of the weights, but in "
                "training mode BatchNorm mixes the samples of a batch and dropout is random. Remove model.train() "
                "from loss_fn."
            )
        return losses
