"""Diagnose a run: the paper's theory and the flatness of the minimum, from the weights that the run has kept.

The measurements themselves are in :mod:`ausam.diagnostics`. This folder loads a run, keeps finished pieces, and writes
the findings and the page.
"""

PARTS = (
    "lemma1",
    "theorem1",
    "theorem2",
    "theorem3",
    "theorem4",
    "hessian",
    "sharpness",
    "landscape",
    "geometry",
    "selection",
)
