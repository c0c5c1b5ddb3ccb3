"""The samples of a batch: how many there are, and some of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

HOOK = "select_rows"  # an object with this method cuts itself: select_rows(rows) returns the part with these rows


def samples_in(batch: tuple[Any, ...]) -> int:
    """How many samples a batch has: the length that its tensors share, those inside lists only if need be."""
    lengths = {len(t) for t in _fields(batch) if t.dim() > 0}
    if len(lengths) != 1:
        lengths = {len(t) for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim() > 0}
    if len(lengths) != 1:
        content = f"tensors of lengths {', '.join(map(str, sorted(lengths)))}" if lengths else "no tensors"
        raise ValueError(
            f"This method splits the batch, but the batch holds {content}, so the number of samples is not known. "
            "Pass index= to opt.backward: one whole number per sample, e.g. torch.arange(n)."
        )
    return lengths.pop()


def select_rows(batch: tuple[Any, ...], rows: Tensor, n: int) -> tuple[Any, ...]:
    """The arguments of a loss function for some rows: everything in them that has ``n`` entries is cut.

    Tensors and numpy arrays are cut along their first dimension. A list or tuple of n entries is cut as a sequence. One
    of another length, a dict, a dataclass and a named tuple are containers, whose entries are cut. An object with a
    method ``select_rows(rows)`` cuts itself. What has n entries and cannot be cut raises an error.
    """
    return tuple(_cut(x, rows, n) for x in batch)


def _cut(x: Any, rows: Tensor, n: int) -> Any:
    if isinstance(x, Tensor):
        return x[rows.to(x.device)] if x.dim() > 0 and len(x) == n else x
    if isinstance(x, np.ndarray):
        return x[rows.cpu().numpy()] if x.ndim > 0 and len(x) == n else x
    if x is None or isinstance(x, (str, bytes, int, float, nn.Module, type)):
        return x
    if hasattr(x, HOOK):
        return getattr(x, HOOK)(rows)
    if isinstance(x, PackedSequence):
        raise _uncut(x, "Pad the sequences instead, with torch.nn.utils.rnn.pad_sequence")
    if isinstance(x, (list, tuple)):
        return _cut_sequence(x, rows, n)
    if isinstance(x, Mapping):
        part: Any = copy.copy(x)
        part.update({key: _cut(value, rows, n) for key, value in x.items()})
        return part
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        given = [f.name for f in dataclasses.fields(x) if f.init]  # the class computes the others itself
        return dataclasses.replace(x, **{name: _cut(getattr(x, name), rows, n) for name in given})
    if hasattr(x, "__len__") and len(x) == n:
        raise _uncut(x, f"Give the class a method {HOOK}(rows) that returns the part with these rows")
    return x


def _cut_sequence(x: Any, rows: Tensor, n: int) -> Any:
    if hasattr(x, "_fields"):  # a named tuple
        return type(x)(*(_cut(v, rows, n) for v in x))
    kind = tuple if isinstance(x, tuple) else list
    if len(x) != n:
        return kind(_cut(v, rows, n) for v in x)
    if n > 1 and all(isinstance(v, Tensor) and v.dim() > 0 and len(v) == n for v in x):
        # Either n samples or n fields with n rows each, e.g. a pair in a batch of two.
        if len({(v.dtype, v.dim()) for v in x}) > 1:
            return kind(v[rows.to(v.device)] for v in x)
        raise _uncut(x, "It is either a tensor per sample or a group of tensors: pass these one by one")
    return kind(x[i] for i in rows.tolist())


def _uncut(x: Any, remedy: str) -> TypeError:
    return TypeError(
        f"This method uses parts of the batch, but a {type(x).__name__} among the arguments of loss_fn cannot be "
        f"cut into samples. {remedy}."
    )


def _fields(x: Any) -> Iterator[Tensor]:
    """The tensors of a batch that are not inside a list."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (tuple, Mapping)):
        for value in x.values() if isinstance(x, Mapping) else x:
            yield from _fields(value)
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        yield from _fields(tuple(getattr(x, f.name) for f in dataclasses.fields(x)))
