"""Functional SAM (Singh et al., ICML 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ausam.common.settings import NonNegative
from ausam.common.tensors import Vector, ascent_
from ausam.methods._base import Settings

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


@dataclass(frozen=True)
class FunctionalSAM(Settings):
    """SAM for the network's function near the weights, with the loss on top of it held fixed at w.

        e = rho * g / |g|,  g = grad L(w);   v_i = d loss_i / d z_i  at the outputs z(w)
        the step uses  1/n sum_i  J_i(w + e)^T v_i,   J_i the Jacobian of z_i by the weights

    SAM takes v at w + e as well. For a loss that is linear in the outputs, the two are the same.

    Singh, Mobahi, Agarwala, Dauphin: Avoiding spurious sharpness minimization broadens applicability of SAM, ICML 2025.

    >>> import torch
    >>> from ausam import FunctionalSAM, SharpnessAware
    >>> model = torch.nn.Linear(2, 3)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), FunctionalSAM(rho=0.05), model)

    Arguments:
        rho: radius of the perturbation, >= 0, over all parameters together. A parameter group may have its own
            ``rho``.

    ``loss_fn`` returns ``(losses, outputs)``. The losses must be computed from these outputs. Anything else (a penalty
    on the weights) affects only the perturbation. Use it where SAM does harm, as the authors found for language
    models. Cost: two forward-backwards.
    """

    rho: NonNegative = 0.05
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 2.0)
    needs_rows: ClassVar[bool] = True

    def gradient(self, step: Step) -> Vector:
        """``1/n sum_i J_i(w + e)^T v_i``."""
        with step.no_sync():
            losses = step.forward()
            v = _slope(losses, step.outputs)
            g = step.backward(losses)
        with step.shifted(ascent_(g, step.radius(self.rho))):
            step.forward()
            return step.backward((v * step.outputs.to(v.dtype)).reshape(len(v), -1).sum(1))


def _slope(losses: Tensor, outputs: Any) -> Tensor:
    """``d loss_i / d z_i`` of every sample, in the precision of the losses."""
    if not isinstance(outputs, Tensor) or outputs.dim() == 0 or len(outputs) != len(losses):
        what = f"of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise TypeError(
            f"FunctionalSAM: the outputs are {what}, but a tensor with one row for each of the {len(losses)} samples "
            'is needed. Return it from loss_fn: z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
        )
    slope = None
    if outputs.requires_grad:
        (slope,) = torch.autograd.grad(losses.sum(), outputs, retain_graph=True, allow_unused=True)
    if slope is None:
        raise TypeError(
            "FunctionalSAM: the losses were not computed from the outputs that loss_fn returned. Return these, not "
            'detached: z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
        )
    return slope.to(losses.dtype)
