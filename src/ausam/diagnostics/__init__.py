"""Diagnostics: how flat a minimum is, measured on your own model.

Every function takes ``(model, loss_fn, batches)``, measures in eval mode and leaves the model as it was. Results are
frozen dataclasses of plain numbers, so ``json.dumps(dataclasses.asdict(result))`` works.
"""

from ausam.diagnostics.hessian import Eigenvalues, Trace, hessian_eigenvalues, hessian_trace
from ausam.diagnostics.landscape import Slice, Surface, loss_line, loss_surface
from ausam.diagnostics.sharpness import Sharpness, sharpness

__all__ = [
    "Eigenvalues",
    "Sharpness",
    "Slice",
    "Surface",
    "Trace",
    "hessian_eigenvalues",
    "hessian_trace",
    "loss_line",
    "loss_surface",
    "sharpness",
]
