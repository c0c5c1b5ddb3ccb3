"""The audit that every run keeps of its data: fed with each step, saved with the checkpoints, and at the end a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ausam.audit import Audit, Verdict
from ausam.feedback import Feedback
from ausam.policies import Trusted
from ausam_lab.data.classification import Classification
from ausam_lab.data.problem import Problem
from ausam_lab.names.expressions import parse
from ausam_lab.names.user_code import is_code
from ausam_lab.records.run import Findings
from ausam_lab.training import checkpoint

FILE = "audit.pth"
WITHOUT_THEM = "SAM(ascent=0.5) + Trusted(alpha=0.67)"  # best at SGD's cost with wrong labels (docs/results.md)


def start(data: Problem) -> Audit:
    """An empty audit of the training samples. Without labels unless the targets are classes."""
    y = data.train_y
    return Audit(len(y), y, classes=data.classes) if isinstance(data.task, Classification) else Audit(len(y))


def update(audit: Audit, feedback: Feedback, y: Tensor, smoothing: float) -> None:
    """Feed a step. What counts is the plain cross-entropy: a smoothed one hides how sure the network is."""
    if audit.labels is None:
        feedback = replace(feedback, outputs=None)  # they are not classes
    elif smoothing and isinstance(feedback.outputs, Tensor):
        excess = F.cross_entropy(feedback.outputs, y, reduction="none") - feedback.loss
        feedback = replace(feedback, loss=feedback.loss + excess)  # a loss that is NaN, so not known, stays NaN
    audit.update(feedback)


def pair_to_try(audit: Audit, said: Verdict, policy: str) -> str:
    """The pair that the verdict suggests, as ``ausam compare`` spells it. Empty if none, or if the run used it."""
    if not is_code(policy) and parse("policy", policy).cls is Trusted:
        return ""
    easy = f"SAM + Trusted(alpha={audit.redundant().alpha:g})"
    return {"wrong labels": WITHOUT_THEM, "redundant": easy}.get(said.kind, "")


def findings(audit: Audit) -> Findings | None:
    """What the record of a run says about its data. None if the losses say nothing about labels."""
    if audit.labels is None or not audit.table()["visits"].any():
        return None
    said = audit.verdict()
    return Findings(said.kind, said.sentences, len(audit.label_errors()))


def write(folder: Path, audit: Audit) -> None:
    """Write the audit of a finished run, with its labels."""
    labels = None if audit.labels is None else torch.from_numpy(audit.labels)
    checkpoint.write(folder / FILE, {**audit.state_dict(), "labels": labels})


def read(folder: Path) -> Audit:
    """The audit of a finished run. A ValueError if there is none, or it cannot be read."""
    path = folder / FILE
    if not path.exists():
        raise ValueError(
            f"{folder} has no audit ({FILE}): the run was finished by an earlier version, or has not ended yet. "
            "Continue it with ausam train --resume, or train again."
        )
    state = checkpoint.read(path)
    try:
        audit = Audit(len(state["visits"]), state["labels"], classes=state["classes"])
        audit.load_state_dict(state)
    except (TypeError, ValueError, LookupError, AttributeError):
        raise ValueError(
            f"{path} holds no audit. Remove it and result.json, and continue the run with --resume."
        ) from None
    return audit
