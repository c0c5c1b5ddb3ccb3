"""ausam: sharpness-aware minimisation at the cost of SGD, and the labels that look wrong.

It has two axes. Every SAM variant is a gradient estimator for :class:`SharpnessAware`, every selection method is a
policy for :class:`SelectiveBatchSampler`, and :class:`Feedback` holds the per-sample losses between them.
"""

from ausam import methods, policies
from ausam.feedback import Feedback
from ausam.methods import *  # noqa: F403  # the names of its __all__, so that a method is listed in one file
from ausam.optimizer import Method, RhoSchedule, SharpnessAware, Step
from ausam.pairing import check
from ausam.policies import *  # noqa: F403
from ausam.sampler import Indexed, Scores, SelectiveBatchSampler, SelectiveStream

__version__ = "0.4.0"

__all__ = [
    "Feedback",
    "Indexed",
    "Method",
    "RhoSchedule",
    "Scores",
    "SelectiveBatchSampler",
    "SelectiveStream",
    "SharpnessAware",
    "Step",
    "check",
]
__all__ += methods.__all__
__all__ += policies.__all__
