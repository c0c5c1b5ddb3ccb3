"""What a training says about its data: wrong labels, rare samples, redundant samples."""

from ausam.audit.audit import Audit
from ausam.audit.learning import Rare, Redundant
from ausam.audit.review import Corrected, Decision, Review, Share, apply, draw_review, read_decisions
from ausam.audit.suspects import Suspects
from ausam.audit.verdict import Verdict

__all__ = [
    "Audit",
    "Corrected",
    "Decision",
    "Rare",
    "Redundant",
    "Review",
    "Share",
    "Suspects",
    "Verdict",
    "apply",
    "draw_review",
    "read_decisions",
]
