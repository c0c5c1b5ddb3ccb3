"""What a training says about its data: wrong labels, rare samples, redundant samples."""

from ausam.audit.audit import Audit
from ausam.audit.learning import Rare, Redundant
from ausam.audit.suspects import Suspects
from ausam.audit.verdict import Verdict

__all__ = ["Audit", "Rare", "Redundant", "Suspects", "Verdict"]
