"""Diagnostics: test the paper's theory, and measure how flat a minimum is, on your own model.

Every function takes ``(model, loss_fn, batches)``, measures in eval mode and leaves the model as it was. A ``loss_fn``
that does not depend on ``model`` is refused. Results are frozen dataclasses of plain numbers, so
``json.dumps(dataclasses.asdict(found))`` works.
"""

from ausam.diagnostics.callback import MEASURES, Diagnostics
from ausam.diagnostics.geometry import (
    Group,
    Selection,
    StepGeometry,
    effective_sample_size,
    selection,
    step_geometry,
)
from ausam.diagnostics.hessian import Eigenvalues, Trace, hessian_eigenvalues, hessian_product, hessian_trace
from ausam.diagnostics.landscape import Slice, Surface, loss_between, loss_line, loss_surface
from ausam.diagnostics.samples import sample_gradient_norms, sample_gradients
from ausam.diagnostics.sharpness import Sharpness, sharpness
from ausam.diagnostics.statistics import Agreement, agreement, pearson, spearman
from ausam.paper.theory.inclusion import inclusion_probabilities
from ausam.paper.theory.lemma1 import AverageDLP, Lemma1, average_dlp, lemma1
from ausam.paper.theory.theorem1 import (
    Bounds,
    Theorem1,
    Theorem1Summary,
    theorem1,
    theorem1_bounds,
    theorem1_summary,
)
from ausam.paper.theory.theorem2 import Theorem2, theorem2
from ausam.paper.theory.theorem3 import (
    LogisticRegression,
    Problem,
    Quadratic,
    Theorem3,
    Theorem3Bounds,
    Theorem3Exact,
    theorem3,
    theorem3_bounds,
    theorem3_counterexample,
)
from ausam.paper.theory.theorem4 import Expected, Theorem4, expected_selection, theorem4

__all__ = [
    "MEASURES",
    "Agreement",
    "AverageDLP",
    "Bounds",
    "Diagnostics",
    "Eigenvalues",
    "Expected",
    "Group",
    "Lemma1",
    "LogisticRegression",
    "Problem",
    "Quadratic",
    "Selection",
    "Sharpness",
    "Slice",
    "StepGeometry",
    "Surface",
    "Theorem1",
    "Theorem1Summary",
    "Theorem2",
    "Theorem3",
    "Theorem3Bounds",
    "Theorem3Exact",
    "Theorem4",
    "Trace",
    "agreement",
    "average_dlp",
    "effective_sample_size",
    "expected_selection",
    "hessian_eigenvalues",
    "hessian_product",
    "hessian_trace",
    "inclusion_probabilities",
    "lemma1",
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
    "theorem1",
    "theorem1_bounds",
    "theorem1_summary",
    "theorem2",
    "theorem3",
    "theorem3_bounds",
    "theorem3_counterexample",
    "theorem4",
]
