"""SAF's memory: the logits of each sample's last visits, in a ring of slots stamped with the visit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Ring = tuple[Tensor, Tensor, Tensor]  # logits (rows, slots, classes), stamps (rows, slots), visits (rows,)


def room(state: dict[str, Any], index: Tensor, z: Tensor, slots: int, device: torch.device) -> Ring:
    """The memory, stored in ``state``, with a row for every index; a tensor is new only if it grew."""
    shape = (slots, z.shape[1])
    ring = (
        state.get("logits", z.new_zeros(0, *shape)).to(device),
        state.get("stamps", torch.zeros(0, slots, dtype=torch.int32, device=device)).to(device),
        state.get("visits", torch.zeros(0, dtype=torch.int32, device=device)).to(device),
    )
    if ring[0].shape[1:] != shape:
        raise ValueError(
            f"SAF: the memory holds {tuple(ring[0].shape[1:])} numbers per sample (gap + 1, classes), but {shape} are "
            "needed. Resume with the gap and the classes of the saved run, or start a new one."
        )
    missing = int(index.max()) + 1 - len(ring[0])
    if missing > 0:
        fills = (0, -slots, 0)  # a stamp that is never `gap` visits ago
        more = [t.new_full((missing, *t.shape[1:]), fill) for t, fill in zip(ring, fills, strict=True)]
        ring = (torch.cat((ring[0], more[0])), torch.cat((ring[1], more[1])), torch.cat((ring[2], more[2])))
    state.update(zip(("logits", "stamps", "visits"), ring, strict=True))
    return ring


def read(ring: Ring, index: Tensor, gap: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each sample: the logits from ``gap`` visits ago, whether they are exactly that old, and its visits so far."""
    logits, stamps, visits = ring
    now = visits[index]
    slot = (now - gap) % logits.shape[1]
    return logits[index, slot], stamps[index, slot] == now - gap, now


def visit(ring: Ring, index: Tensor, z: Tensor, keep: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...], Tensor]]:
    """The writes for one more visit of each sample: places and values, with the logits of the rows to ``keep``."""
    logits, stamps, visits = ring
    now = visits[index]
    place = (index, now % logits.shape[1])
    return [
        (logits, place, torch.where(keep[:, None], z.to(logits.dtype), logits[place])),
        (stamps, place, torch.where(keep, now, stamps[place])),
        (visits, (index,), now + 1),
    ]
