"""The mathematics of every method: pure functions on lists with one entry per parameter.

An entry is None where a pass did not reach that parameter, and stays None: a missing gradient is not a zero
gradient, because weight decay and momentum would then move the parameter. Complex entries count as pairs of reals.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Vector = list[Tensor | None]

# Keeps the direction of a zero gradient finite (the value the common implementations use).
TINY = 1e-12

HALF = (torch.float16, torch.bfloat16)


PLAIN = {Tensor, torch.nn.Parameter}  # a look at the type is faster than asking for an attribute that is not there


def sharded(t: Tensor) -> bool:
    """Whether this is a DTensor, of which each process holds a part. Known by its methods: the import is slow."""
    return type(t) not in PLAIN and hasattr(t, "to_local")


def local(t: Tensor) -> Tensor:
    """The part of a sharded tensor (a DTensor, under FSDP) that this process holds; any other as it is."""
    return t.to_local() if sharded(t) else t  # type: ignore[attr-defined]


def whole(t: Tensor) -> Tensor:
    """All of a sharded tensor, put together from its parts; any other as it is."""
    return t.full_tensor() if sharded(t) else t  # type: ignore[attr-defined]


def present(x: Vector) -> list[Tensor]:
    """The entries that exist."""
    return [t for t in x if t is not None]


def as_real(x: Vector) -> Vector:
    """Complex entries as views with a last dimension of two; the others as they are."""
    return [torch.view_as_real(t) if t is not None and t.is_complex() else t for t in x]


def as_complex(x: Vector, like: Vector) -> Vector:
    """The inverse of :func:`as_real`: complex again where ``like`` is."""
    return [
        torch.view_as_complex(a) if a is not None and b is not None and b.is_complex() else a
        for a, b in zip(x, like, strict=True)
    ]


def norm(x: Vector) -> Tensor:
    """Euclidean norm over all entries together, a scalar tensor of at least float32 on the first entry's device."""
    tensors = present(x)
    return whole(torch.linalg.vector_norm(torch.stack(_norms(tensors)))) if tensors else torch.zeros(())


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """The norm of each, as scalars of one precision on one device."""
    first = tensors[0]
    kinds = dict.fromkeys([(t.dtype, t.device, t.layout) for t in tensors])
    if any(layout is not torch.strided for _, _, layout in kinds):
        raise RuntimeError(
            "A gradient is sparse, and a norm over all parameters needs dense ones. "
            "Build the embedding with sparse=False."
        )
    if len(kinds) == 1:
        return list(torch._foreach_norm(tensors, 2, dtype=_wide_norm(first.dtype)))
    norms: list[Tensor] = []  # a model over several devices or precisions: one fused call for each
    for dtype, device, _ in kinds:
        alike = [t for t in tensors if t.dtype == dtype and t.device == device]
        norms += torch._foreach_norm(alike, 2, dtype=_wide_norm(dtype))
    widest = torch.float64 if any(n.dtype == torch.float64 for n in norms) else None
    return [n.to(first.device, widest) for n in norms]


def size(x: Vector, *scalars: Tensor) -> Tensor:
    """A scalar that is finite if every entry and every scalar is; nothing is read. Entries may be sparse."""
    values = [t if t.layout == torch.strided else t.coalesce().values() for t in x if t is not None]
    if not values or sharded(values[0]):
        total = norm(values)  # type: ignore[arg-type]
        for scalar in scalars:
            total = total + scalar.to(total.device)
        return total
    norms = _norms(values)
    home = norms[0].device
    return torch.stack([*norms, *(s if s.device == home else s.to(home) for s in scalars)]).sum()


def scale(x: Vector, factor: float | Tensor) -> Vector:
    """``factor * x``."""
    return _spread(x, _times(present(x), factor))


def multiply(x: Vector, y: Vector) -> Vector:
    """Element by element ``x * y``; None where either is."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    products = iter(torch._foreach_mul([a for a, _ in pairs], [b for _, b in pairs]) if pairs else [])
    return [None if a is None or b is None else next(products) for a, b in zip(x, y, strict=True)]


def add(x: Vector, y: Vector, alpha: float | Tensor = 1.0) -> Vector:
    """``x + alpha * y`` in new memory; where only one of the two exists, that one alone (times ``alpha`` if y)."""
    scaled = scale(y, alpha)
    pairs = [(a, b) for a, b in zip(x, scaled, strict=True) if a is not None and b is not None]
    sums = iter(torch._foreach_add([a for a, _ in pairs], [b for _, b in pairs]) if pairs else [])
    return [
        next(sums) if a is not None and b is not None else b if a is None else a.clone()
        for a, b in zip(x, scaled, strict=True)
    ]


def dot(x: Vector, y: Vector) -> Tensor:
    """Real inner product over the entries that both have, a scalar of at least float32 on the first one's device."""
    pairs = [(_wide(a), _wide(b)) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    if not pairs:
        return torch.zeros(())
    parts = [(a * b).sum() if sharded(a) else torch.dot(_flat(a), _flat(b)) for a, b in pairs]
    return whole(torch.stack([p.to(parts[0].device) for p in parts]).sum())


def orthogonal(x: Vector, y: Vector, tiny: float = TINY) -> Vector:
    """The part of ``x`` at right angles to ``y``, all parameters as one vector (0 where missing); ``x`` if y is 0."""
    unit = scale(y, 1.0 / (norm(y) + tiny))
    return add(x, unit, -dot(x, unit))


def matching(x: Vector, like: Vector) -> Vector:
    """``x`` where ``like`` exists: keeps a remembered vector from moving parameters that this batch does not reach."""
    return [None if b is None else a for a, b in zip(x, like, strict=True)]


def average(old: Vector, new: Vector, decay: float) -> Vector:
    """Moving average ``decay * old + (1 - decay) * new`` in new memory; where only one exists, that one."""
    both = [None if b is None else a for a, b in zip(old, new, strict=True)]
    mixed = add(scale(both, decay), matching(new, both), 1.0 - decay)
    return [t if t is not None else b.clone() if b is not None else a for t, a, b in zip(mixed, old, new, strict=True)]


def hardest(scores: Tensor, part: float) -> Tensor:
    """Positions of the largest ``part`` of the scores: ``max(1, round(part * n))`` of n, also where they tie."""
    return scores.topk(max(1, round(part * len(scores)))).indices


def ascent(g: Vector, rho: float | Sequence[float], tiny: float = TINY) -> Vector:
    """SAM's perturbation ``e = rho * g / (|g| + tiny)``, the norm taken over all parameters together.

    ``rho`` may hold one radius per parameter (parameter groups with their own): each scales the common direction.
    """
    return ascent_([None if t is None else t.clone() for t in g], rho, tiny)


def ascent_(g: Vector, rho: float | Sequence[float], tiny: float = TINY) -> Vector:
    """The same in the memory of ``g``, which is used up."""
    tensors = present(g)
    if not tensors:
        return g
    factor = reach(g, 1.0 if isinstance(rho, Sequence) else rho, tiny)
    if isinstance(rho, Sequence):
        for t, r in zip(g, rho, strict=True):
            if t is not None:
                t.mul_(r)
    _times_(tensors, factor)
    return g


def reach(g: Vector, rho: float, tiny: float = TINY) -> Tensor:
    """``rho / (|g| + tiny)``: what a gradient is multiplied with to have the length rho."""
    return norm(g).add_(tiny).reciprocal_().mul_(rho)


def _wide_norm(dtype: torch.dtype) -> torch.dtype | None:
    return torch.float32 if dtype in HALF else None


def _flat(t: Tensor) -> Tensor:
    return (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).flatten()


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in HALF else t


def _times(tensors: list[Tensor], factor: float | Tensor) -> list[Tensor]:
    if not tensors:
        return []
    if isinstance(factor, Tensor) and any(t.device != factor.device or t.dtype != factor.dtype for t in tensors):
        # A model over several devices or precisions: the scalar follows each tensor.
        return [t * factor.to(t.device, t.dtype) for t in tensors]
    return list(torch._foreach_mul(tensors, factor))


def _times_(tensors: list[Tensor], factor: Tensor) -> None:
    if {t.device for t in tensors} == {factor.device}:
        torch._foreach_mul_(tensors, factor)
    else:
        for t in tensors:
            t.mul_(factor.to(t.device))


def _spread(x: Vector, values: Sequence[Tensor]) -> Vector:
    it = iter(values)
    return [None if t is None else next(it) for t in x]
