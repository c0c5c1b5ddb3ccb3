"""The mathematics of every method: pure functions on lists with one entry per parameter.

If a pass does not reach a parameter, its entry is None and stays None. A missing gradient is not a zero gradient,
because weight decay and momentum would then move the parameter. Complex entries count as pairs of reals.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Vector = list[Tensor | None]

# Keeps the direction of a zero gradient finite (the value the common implementations use).
TINY = 1e-12

HALF = (torch.float16, torch.bfloat16)

CPU = torch.device("cpu")  # for our own numbers, wherever torch.set_default_device puts the user's

# Made once: torch.zeros() takes longer than a clone.
ZERO, ONE = (torch.tensor(value, dtype=torch.float32, device=CPU) for value in (0.0, 1.0))


SPARSE = "A gradient is sparse, and a norm over all parameters needs dense ones: build the embedding with sparse=False."

# In a small network's step, a loop in Python takes longer than the arithmetic: these run in C, as arguments of map.
get_data, get_device, get_dtype, get_grad, get_layout, get_shape = map(
    operator.attrgetter, ("data", "device", "dtype", "grad", "layout", "shape")
)
is_none = functools.partial(operator.is_, None)

PLAIN = {Tensor, torch.nn.Parameter}  # checking the type is faster than looking for a missing attribute


def sharded(t: Tensor) -> bool:
    """Whether this is a DTensor, spread over processes. Recognised by a method, because the import is slow."""
    return type(t) not in PLAIN and hasattr(t, "to_local")


def local(t: Tensor) -> Tensor:
    """The part of a sharded tensor (a DTensor, under FSDP) that this process holds. Any other tensor unchanged."""
    return t.to_local() if sharded(t) else t  # type: ignore[attr-defined]


def whole(t: Tensor) -> Tensor:
    """A sharded tensor, assembled from its parts. Any other tensor unchanged."""
    return t.full_tensor() if sharded(t) else t  # type: ignore[attr-defined]


def clone_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the dict with tensors of its own, on the CPU: ``torch.load(map_location=...)`` moves every tensor.

    ``copy.deepcopy`` disables gradients while it copies a tensor, and a signal at that moment leaves them disabled.
    """
    return {name: value.to(CPU, copy=True) if isinstance(value, Tensor) else value for name, value in values.items()}


def present(x: Vector) -> list[Tensor]:
    """The entries that exist."""
    return [*itertools.filterfalse(is_none, x)]  # type: ignore[list-item]


def dense(tensors: Iterable[Tensor]) -> bool:
    """Whether none is sparse."""
    return all(map(operator.is_, map(get_layout, tensors), itertools.repeat(torch.strided)))


def as_real(x: Vector) -> Vector:
    """Complex entries as views with a last dimension of two. The others unchanged."""
    return [torch.view_as_real(t) if t is not None and t.is_complex() else t for t in x]


def as_complex(x: Vector, like: Vector) -> Vector:
    """The inverse of :func:`as_real`: complex again where ``like`` is."""
    return [
        torch.view_as_complex(a) if a is not None and b is not None and b.is_complex() else a
        for a, b in zip(x, like, strict=True)
    ]


def norm(x: Vector) -> Tensor:
    """Euclidean norm over all entries together, a scalar tensor of at least float32 on the first entry's device.

    It is NaN if its square overflows (from 1.8e19 in float32), so that the step is skipped. Infinity would make SAM's
    perturbation zero without a warning.
    """
    return _norm(_by_kind(x))


def _norm(kinds: list[list[Tensor]]) -> Tensor:
    norms: list[Tensor] = []
    for group in kinds:
        try:
            norms += torch._foreach_norm(group, 2, dtype=torch.float32 if group[0].dtype in HALF else None)
        except RuntimeError as error:
            if dense(group):
                raise
            raise RuntimeError(SPARSE) from error
    if len(kinds) != 1:
        if not norms:
            return torch.zeros(())
        home, widest = norms[0].device, max((n.dtype for n in norms), key=lambda d: d.itemsize)
        norms = [n.to(home, widest) for n in norms]
    total = torch.linalg.vector_norm(torch.stack(norms))
    return (total if type(total) in PLAIN else whole(total)).nan_to_num_(nan=math.nan, posinf=math.nan)


def _by_kind(x: Vector) -> list[list[Tensor]]:
    """Lists by precision and device, one fused call each, because a model may be spread over several."""
    tensors = present(x)
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    keys = [*zip(map(get_dtype, tensors), map(get_device, tensors), strict=True)]
    if len({*keys}) == 1:
        return [tensors]
    for key, t in zip(keys, tensors, strict=True):
        kinds.setdefault(key, []).append(t)
    return list(kinds.values())


def scale(x: Vector, factor: float | Tensor) -> Vector:
    """``factor * x``."""
    return _spread(x, _times(present(x), factor))


def multiply(x: Vector, y: Vector) -> Vector:
    """Element by element ``x * y``. None where either is."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    products = iter(torch._foreach_mul([a for a, _ in pairs], [b for _, b in pairs]) if pairs else [])
    return [None if a is None or b is None else next(products) for a, b in zip(x, y, strict=True)]


def add(x: Vector, y: Vector, alpha: float | Tensor = 1.0) -> Vector:
    """``x + alpha * y`` in new memory. Where only one of the two exists, that one alone (times ``alpha`` if y)."""
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
    """The part of ``x`` orthogonal to ``y``, all parameters as one vector, or ``x`` if y is 0. None counts as 0."""
    unit = scale(y, 1.0 / (norm(y) + tiny))
    return add(x, unit, -dot(x, unit))


def matching(x: Vector, like: Vector) -> Vector:
    """``x`` where ``like`` exists: keeps a remembered vector from moving parameters that this batch does not reach.

    In the precision and on the device of ``like``, because the model may have moved since the vector was remembered.
    """
    return [None if a is None or b is None else _placed(a, b) for a, b in zip(x, like, strict=True)]


def _placed(a: Tensor, like: Tensor) -> Tensor:
    return a if a.dtype == like.dtype and a.device == like.device else a.to(like.device, like.dtype)


def average(old: Vector, new: Vector, decay: float) -> Vector:
    """Moving average ``decay * old + (1 - decay) * new`` in new memory. Where only one exists, that one."""
    both = [None if b is None else a for a, b in zip(old, new, strict=True)]
    mixed = add(scale(both, decay), matching(new, both), 1.0 - decay)
    return [t if t is not None else b.clone() if b is not None else a for t, a, b in zip(mixed, old, new, strict=True)]


def hardest(scores: Tensor, part: float) -> Tensor:
    """Positions of the largest ``part`` of the scores: ``max(1, round(part * n))`` of n, even with ties."""
    return scores.topk(rounded(part, len(scores))).indices


def rounded(part: float, n: int) -> int:
    """The number of rows in a fraction of n: at least one."""
    return max(1, round(part * n))


def ascent(g: Vector, rho: float | Sequence[float], tiny: float = TINY) -> Vector:
    """SAM's perturbation ``e = rho * g / (|g| + tiny)``, the norm taken over all parameters together.

    ``rho`` may hold one radius per parameter (groups with their own): each scales the common direction.
    """
    return ascent_([None if t is None else t.clone() for t in g], rho, tiny)


def ascent_(g: Vector, rho: float | Sequence[float], tiny: float = TINY) -> Vector:
    """The same in place: overwrites ``g``."""
    kinds = _by_kind(g)
    factor = _norm(kinds).add_(tiny).reciprocal_()
    if isinstance(rho, (int, float)):
        factor.mul_(rho)
    else:
        for t, r in zip(g, rho, strict=True):
            if t is not None:
                t.mul_(r)
    for group in kinds:
        parts = group if type(group[0]) in PLAIN else [*map(local, group)]
        torch._foreach_mul_(parts, factor if len(kinds) == 1 else factor.to(group[0].device))
    return g


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


def _spread(x: Vector, values: Sequence[Tensor]) -> Vector:
    it = iter(values)
    return [None if t is None else next(it) for t in x]
