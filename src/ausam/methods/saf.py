"""Sharpness-aware training for free (Du et al., NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ausam.common.settings import Count, NonNegative, Positive, PositiveCount
from ausam.common.tensors import Vector
from ausam.methods._base import Settings
from ausam.methods._trajectory import logits, trajectory

if TYPE_CHECKING:
    from ausam.optimizer.step import Step

# The logits of each sample's last visits, in a ring of slots stamped with the visit: logits (rows, slots, classes),
# stamps (rows, slots), visits (rows,).
Ring = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class SAF(Settings):
    """Stay near the network's outputs for each sample some visits ago: a flat trajectory instead of a perturbation.

        L = mean_i [ loss_i + lam * tau^2 * KL(softmax(z_i^old / tau) || softmax(z_i / tau)) ]

    ``z_i^old`` are the sample's logits from exactly ``gap`` visits ago. Without them, its term is left out. The paper
    counts epochs. Here each sample counts its visits.
    Du, Zhou, Feng, Tan, Zhou: Sharpness-Aware Training for Free, NeurIPS 2022.

    >>> import torch
    >>> from ausam import SAF, SharpnessAware
    >>> model = torch.nn.Linear(2, 3)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAF(), model)

    Arguments:
        lam: weight of the trajectory term, >= 0.
        tau: temperature, > 0.
        gap: how many visits back, >= 1.
        start: a sample's term is used after more than this many earlier visits, >= 0.
        device: where the memory is. If None (default), with the logits. Use "cpu" if it does not fit there.

    ``loss_fn`` returns ``(losses, logits)``, and ``opt.backward`` needs the samples' ``index``. Use it for classifiers
    trained for many epochs. Memory: samples * (gap + 1) * classes numbers. Cost: one forward-backward.
    """

    lam: NonNegative = 0.3
    tau: Positive = 5.0
    gap: PositiveCount = 3
    start: Count = 5
    device: str | None = field(default=None, kw_only=True)
    sharpness: ClassVar[str] = "never"
    passes: ClassVar[tuple[float, float]] = (1.0, 1.0)
    needs_rows: ClassVar[bool] = True

    def gradient(self, step: Step) -> Vector:
        """The gradient of the loss with the trajectory term."""
        losses = step.forward()
        z = logits("SAF", step.outputs)
        if step.index is None:
            raise ValueError(
                "SAF remembers the logits of each sample, but opt.backward does not know which samples these are. "
                "Pass index=index, the dataset index that Indexed(dataset) returns."
            )
        home = z.device if self.device is None else torch.device(self.device)
        ring, index = make_room(step.state, step.index, z.detach(), self.gap + 1, home), step.index.to(home)
        old, known, visits = (t.to(z.device) for t in read(ring, index, self.gap))
        finite = z.detach().isfinite().all(1)
        used = known & (visits > self.start) & finite
        # Where the term is left out, z is replaced by old, so the divergence and its gradient are exactly zero.
        term = trajectory(old, torch.where(used[:, None], z, old.to(z.dtype)), self.tau)
        g = step.backward(losses + self.lam * term)
        for table, place, values in writes(ring, index, z.detach().to(home), finite.to(home)):
            step.write(table, place, values)
        return g


def make_room(state: dict[str, Any], index: Tensor, z: Tensor, slots: int, device: torch.device) -> Ring:
    """The memory, stored in ``state``, with a row for every index. A tensor is new only if it grew."""
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
    if int(index.min()) < 0:
        raise ValueError(f"SAF: an index is {int(index.min())}. Pass the dataset index that Indexed(dataset) returns.")
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


def writes(ring: Ring, index: Tensor, z: Tensor, keep: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...], Tensor]]:
    """The writes for one more visit of each sample: places and values, with the logits of the rows to ``keep``."""
    logits, stamps, visits = ring
    now = visits[index]
    place = (index, now % logits.shape[1])
    return [
        (logits, place, torch.where(keep[:, None], z.to(logits.dtype), logits[place])),
        (stamps, place, torch.where(keep, now, stamps[place])),
        (visits, (index,), now + 1),
    ]
