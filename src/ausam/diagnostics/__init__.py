"""Diagnostics: how flat a minimum is, what a step does and which samples are chosen, measured on your own model.

Every function takes ``(model, loss_fn, batches)``, measures in eval mode and leaves the model as it was. A ``loss_fn``
that does not depend on ``model`` is refused. Results are frozen dataclasses of plain numbers, so
``json.dumps(dataclasses.asdict(result))`` works.
"""

from ausam.diagnostics.callback import MEASURES, Diagnostics
from ausam.diagnostics.geometry import StepGeometry, step_geometry
from ausam.diagnostics.hessian import Eigenvalues, Trace, hessian_eigenvalues, hessian_product, hessian_trace
from ausam.diagnostics.landscape import Slice, Surface, loss_between, loss_line, loss_surface
from ausam.diagnostics.samples import sample_gradient_norms, sample_gradients
from ausam.diagnostics.selection import Group, Selection, effective_sample_size, selection
from ausam.diagnostics.sharpness import Sharpness, sharpness
from ausam.diagnostics.statistics import Agreement, agreement, pearson, spearman

__all__ = [
    "MEASURES",
    "Agreement",
    "Diagnostics",
    "Eigenvalues",
    "Group",
    "Selection",
    "Sharpness",
    "Slice",
    "StepGeometry",
    "Surface",
    "Trace",
    "agreement",
    "effective_sample_size",
    "hessian_eigenvalues",
    "hessian_product",
    "hessian_trace",
    "loss_between",
    "loss_line",
    "loss_surface",
    "pearson",
    "sample_gradient_norms",
    "sample_gradients",
    "selection",
    "sharpness",
    "spearman",
    "step_geometry",
]
