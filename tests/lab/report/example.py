"""A comparison made by hand, which several tests of the report use."""

import math

from ausam_lab.config import Config
from ausam_lab.records.comparison import CurvePoint, NamedRun
from tests.lab.helpers import a_comparison, a_run

# Per name: scores of three seeds, CPU seconds, samples through both passes (SGD: 2000).
# AUSAM-0.5 less SGD is 1.6, 1.5, 1.4; less SAM (half the epochs) 1.0, 1.1, 0.9; less SAM+Random 0.0, 0.8, 0.1; less SAM
# -0.5, -0.4, -0.6
FIGURES = {
    "sgd": ([93.6, 94.1, 94.3], 6.0, 2000),
    "sam": ([95.7, 96.0, 96.3], 12.0, 4000),
    "sam@0.5": ([94.2, 94.5, 94.8], 6.0, 2000),
    "ausam-0.5": ([95.2, 95.6, 95.7], 6.41, 2068),
    "sam+random": ([95.2, 94.8, 95.6], 6.2, 2068),
}
LABELS = {
    "sgd": "SGD",
    "sam": "SAM",
    "sam@0.5": "SAM (half the epochs)",
    "ausam-0.5": "AUSAM-0.5",
    "sam+random": "SAM+Random",
}
KINDS = {"sgd": "method", "sam": "method", "sam@0.5": "baseline", "sam+random": "baseline"}


def runs(name, scores, seconds, samples, kind="contender"):
    made = []
    for seed, score in enumerate(scores):
        run = a_run(
            score,
            seed,
            2 * seconds,
            cpu_seconds=seconds + 0.1 * (seed - 1),
            samples_forward=samples // 2,
            samples_backward=samples // 2,
            config=Config(kind=KINDS.get(name, kind)),
        )
        curve = CurvePoint(1, 1.0, 40.0 + seed, 1.0), CurvePoint(2, math.nan, score, 2.0)
        made.append(NamedRun(name, run, curve))
    return made


def compared(figures, **changes):
    """A comparison of one epoch over 1,000 samples, so that plain SGD passes 2,000 forward and backward."""
    every = [r for name, figure in figures.items() for r in runs(name, *figure)]
    config = Config(model="resnet-tiny", lr=0.05, label_noise=0.2, epochs=1)
    labels = {name: LABELS.get(name, name.upper()) for name in figures}
    return a_comparison(every, labels, **{"command": "ausam compare sgd sam ausam-0.5", "config": config} | changes)
