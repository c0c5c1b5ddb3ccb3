"""What a training says about its data: wrong labels and redundant samples."""

from ausam.audit.audit import Audit
from ausam.audit.find import find_label_errors
from ausam.audit.review import Corrected, Decision, apply, read_decisions
from ausam.audit.share import Review, Share, draw_review
from ausam.audit.verdict import Redundant, Verdict
from ausam.common.label_errors import LabelErrors, flag, rank

__all__ = [
    "Audit",
    "Corrected",
    "Decision",
    "LabelErrors",
    "Redundant",
    "Review",
    "Share",
    "Verdict",
    "apply",
    "draw_review",
    "find_label_errors",
    "flag",
    "rank",
    "read_decisions",
]
