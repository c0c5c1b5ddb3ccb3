"""The paper's lemma and theorems, measured on your own model, or on problems whose constants are known.

The functions take ``(model, loss_fn, batches)`` and follow the rules of :mod:`ausam.diagnostics`: they measure in eval
mode, leave the model as it was, and return frozen dataclasses of plain numbers.
"""

from ausam_lab.paper.theory.inclusion import inclusion_probabilities
from ausam_lab.paper.theory.lemma1 import AverageDLP, Lemma1, average_dlp, lemma1, lemma1_measure
from ausam_lab.paper.theory.theorem1 import (
    Bounds,
    Theorem1,
    Theorem1Summary,
    theorem1,
    theorem1_bounds,
    theorem1_summary,
)
from ausam_lab.paper.theory.theorem2 import Theorem2, theorem2
from ausam_lab.paper.theory.theorem3 import (
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
from ausam_lab.paper.theory.theorem4 import Expected, Theorem4, expected_selection, theorem4

__all__ = [
    "AverageDLP",
    "Bounds",
    "Expected",
    "Lemma1",
    "LogisticRegression",
    "Problem",
    "Quadratic",
    "Theorem1",
    "Theorem1Summary",
    "Theorem2",
    "Theorem3",
    "Theorem3Bounds",
    "Theorem3Exact",
    "Theorem4",
    "average_dlp",
    "expected_selection",
    "inclusion_probabilities",
    "lemma1",
    "lemma1_measure",
    "theorem1",
    "theorem1_bounds",
    "theorem1_summary",
    "theorem2",
    "theorem3",
    "theorem3_bounds",
    "theorem3_counterexample",
    "theorem4",
]
