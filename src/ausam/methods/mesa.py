"""Memory-efficient sharpness-aware training with a moving-average teacher (Du et al., NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ausam.methods._trajectory import check, logits, trajectory
from ausam.tensors import Vector, average

if TYPE_CHECKING:
    from ausam.run import Run


@dataclass(frozen=True)
class MESA:
    """SAF without its table: the weights' moving average is the earlier network, asked about the same input.

        L = mean_i [ loss_i + lam * tau^2 * KL(softmax(z_i^ema / tau) || softmax(z_i / tau)) ]
        ema := decay * ema + (1 - decay) * w  after each optimizer step, BatchNorm's statistics likewise

    Du, Zhou, Feng, Tan, Zhou: Sharpness-Aware Training for Free, NeurIPS 2022.

    >>> import torch
    >>> from ausam import MESA, SharpnessAware
    >>> model = torch.nn.Linear(2, 3)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), MESA(start=500), model)

    Arguments:
        lam: weight of the trajectory term, >= 0.
        tau: temperature, > 0.     decay: of the moving average, in [0, 1).
        start: optimizer steps before the term is used, >= 0. The authors wait 5 epochs: give ``5 * len(loader)``.

    ``loss_fn`` returns ``(losses, logits)``. The teacher is in evaluation mode. Use it where SAF's memory does not fit.
    Memory: one more model, and another during the step. Cost: two forwards (one before ``start``), one backward.
    """

    lam: float = 0.8
    tau: float = 5.0
    decay: float = 0.9995
    start: int = 5
    sharpness: ClassVar[str] = "never"

    def __post_init__(self) -> None:
        check("MESA", self.lam, self.tau, start=self.start)
        if not 0 <= self.decay < 1:
            raise ValueError(f"MESA: decay is {self.decay}, but it is the decay of an average. Use 0 <= decay < 1.")

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""
        return 2.0, 1.0

    def gradient(self, run: Run) -> Vector:
        """The gradient of the loss with the trajectory term."""
        # Once an optimizer step, when the next begins: weights and buffers are then those after the step.
        if run.state.get("seen") != run.step:
            for key, now in (("teacher", run.params), ("teacher_buffers", run.buffers)):
                run.state[key] = self._follow(run.state.get(key), now)
            run.state["seen"] = run.step
        if run.step < self.start:
            losses = run.forward()
            logits("MESA", run.outputs)  # refuses now what would fail later
            return run.backward(losses)
        # Before the student's forward, whose saved tensors must not change under autograd.
        old = logits("MESA", run.predict(run.state["teacher"], run.state["teacher_buffers"]))
        losses = run.forward()
        return run.backward(losses + self.lam * trajectory(old, logits("MESA", run.outputs), self.tau))

    def _follow(self, old: Vector | None, now: Sequence[Tensor]) -> Vector:
        # At least float32: bfloat16 is too coarse for a part 1 - decay.
        new: Vector = [t.detach().to(torch.promote_types(t.dtype, torch.float32)) for t in now]
        start: Vector = [None] * len(new) if old is None else old
        placed: Vector = [None if o is None else o.to(n.device) for o, n in zip(start, now, strict=True)]
        return average(placed, new, self.decay)
