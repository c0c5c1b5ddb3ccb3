"""SAF's memory: the logits of each sample's last visits, in a ring of slots with the visit that each was written at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Ring = tuple[Tensor, Tensor, Tensor]  # logits (rows, slots, classes), stamps (rows, slots), visits (rows,)


def room(state: dict[str, Any], index: Tensor, z: Tensor, slots: int, device: torch.device) -> Ring:
    """The memory with a row for every index, in ``state`` from now on; the tensors are new only where they grew."""
    shape = (slots, z.shape[1])
    ring = (
        state.get("logits", z.new_zeros(0, *shape)).to(device),
        state.get("stamps", torch.zeros(0, slots, dtype=torch.int32)).to(device),
        state.get("visits", torch.zeros(0, dtype=torch.int32)).to(device),
    )
    if ring[0].shape[1:] != shape:
        raise ValueError(
            f"SAF: the memory holds {tuple(ring[0].shape[1:])} numbers per sample (gap + 1, classes), but {shape} are "
            "needed. Resume with the gap and the classes of the saved run, or begin afresh."
        )
    missing = int(index.max()) + 1 - len(ring[0])
    if missing > 0:
        fills = (0, -slots, 0)  # a stamp that is `gap` visits before no visit
        more = [t.new_full((missing, *t.shape[1:]), fill) for t, fill in zip(ring, fills, strict=True)]
        ring = (torch.cat((ring[0], more[0])), torch.cat((ring[1], more[1])), torch.cat((ring[2], more[2])))
    state.update(zip(("logits", "stamps", "visits"), ring, strict=True))
    return ring


def read(ring: Ring, index: Tensor, gap: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each sample: the logits of ``gap`` visits ago, whether they are of exactly then, and its visits so far."""
    logits, stamps, visits = ring
    now = visits[index]
    slot = (now - gap) % logits.shape[1]
    return logits[index, slot], stamps[index, slot] == now - gap, now


def visit(ring: Ring, index: Tensor, z: Tensor, keep: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...], Tensor]]:
    """What to write where: one more visit of each sample, and the logits of the rows to ``keep``."""
    logits, stamps, visits = ring
    now = visits[index]
    place = (index, now % logits.shape[1])
    return [
        (logits, place, torch.where(keep[:, None], z.to(logits.dtype), logits[place])),
        (stamps, place, torch.where(keep, now, stamps[place])),
        (visits, (index,), now + 1),
    ]
