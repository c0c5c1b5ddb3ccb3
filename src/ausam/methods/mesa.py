"""Memory-efficient sharpness-aware training with a moving-average teacher (Du et al., NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ausam.common.settings import Count, Decay, NonNegative, Positive
from ausam.common.tensors import Vector, average
from ausam.methods._base import Settings
from ausam.methods._trajectory import logits, trajectory

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class MESA(Settings):
    """SAF without its table: the earlier network is a moving average of the weights, run on the same input.

        L = mean_i [ loss_i + lam * tau^2 * KL(softmax(z_i^ema / tau) || softmax(z_i / tau)) ]
        ema := decay * ema + (1 - decay) * w  after each optimizer step, BatchNorm's statistics likewise

    Du, Zhou, Feng, Tan, Zhou: Sharpness-Aware Training for Free, NeurIPS 2022.

    >>> import torch
    >>> from ausam import MESA, SharpnessAware
    >>> model = torch.nn.Linear(2, 3)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), MESA(start=500), model)

    Arguments:
        lam: weight of the trajectory term, >= 0.
        tau: temperature, > 0.
        decay: decay of the moving average, in [0, 1).
        start: optimizer steps before the term is used, >= 0. The authors wait 5 epochs: use ``5 * len(loader)``.

    ``loss_fn`` returns ``(losses, logits)``. The teacher is in evaluation mode. Use it where SAF's memory does not fit.
    Memory: one more model, and another during the step. Cost: two forwards (one before ``start``), one backward.
    """

    lam: NonNegative = 0.8
    tau: Positive = 5.0
    decay: Decay = 0.9995
    start: Count = 5
    sharpness: ClassVar[str] = "never"
    passes: ClassVar[tuple[float, float]] = (2.0, 1.0)
    needs_rows: ClassVar[bool] = True

    def gradient(self, step: Step) -> Vector:
        """The gradient of the loss with the trajectory term."""
        # Once per optimizer step, when the next one begins, so weights and buffers are those after the step.
        if step.state.get("seen") != step.number:
            for key, now in (("teacher", step.params), ("teacher_buffers", step.buffers)):
                step.state[key] = self._follow(step.state.get(key), now)
            step.state["seen"] = step.number
        if step.number < self.start:
            losses = step.forward()
            logits("MESA", step.outputs)  # refuse now what would fail later
            return step.backward(losses)
        # Before the student's forward, whose saved tensors must not change under autograd.
        old = logits("MESA", step.predict(step.state["teacher"], step.state["teacher_buffers"]))
        losses = step.forward()
        return step.backward(losses + self.lam * trajectory(old, logits("MESA", step.outputs), self.tau))

    def _follow(self, old: Vector | None, now: Sequence[Tensor]) -> Vector:
        # At least float32: bfloat16 is too coarse for a part 1 - decay.
        new: Vector = [t.detach().to(torch.promote_types(t.dtype, torch.float32)) for t in now]
        start: Vector = [None] * len(new) if old is None else old
        # A buffer may change its shape, as the observers of quantisation do in their first forward: begin again.
        placed: Vector = [
            None if o is None or o.shape != n.shape else o.to(n.device) for o, n in zip(start, now, strict=True)
        ]
        return average(placed, new, self.decay)
