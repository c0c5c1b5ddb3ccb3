"""The samples of a batch: how many there are, and some of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length that all of its tensors share."""
    lengths = {len(t) for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim() > 0}
    if len(lengths) != 1:
        content = f"tensors of lengths {', '.join(map(str, sorted(lengths)))}" if lengths else "no tensors"
        raise ValueError(
            f"This method splits the batch, but the batch holds {content}, so the number of samples is not known. "
            "Pass index= to opt.backward: one whole number per sample, e.g. torch.arange(n)."
        )
    return lengths.pop()


def select_rows(batch: tuple[Any, ...], rows: Tensor, n: int | None) -> tuple[Any, ...]:
    """The batch with these rows of every tensor that has one row for each of the ``n`` samples."""

    def select(x: Any) -> Any:
        return x[rows.to(x.device)] if isinstance(x, Tensor) and x.dim() > 0 and len(x) == n else x

    selected: tuple[Any, ...] = tree_map(select, batch)
    return selected
