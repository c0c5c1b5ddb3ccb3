"""A run, measured: the paper's theory and the flatness of the minimum, from the weights that the run has kept.

How things are measured is in :mod:`ausam.diagnostics`. Here are the run that they are measured on, the pieces that are
done already, the sentences and the page.
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
