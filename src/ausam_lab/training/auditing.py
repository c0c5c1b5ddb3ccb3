"""The audit that every run keeps of its data: fed with each step, saved with the checkpoints, and at the end a file."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ausam.audit import Audit, Verdict
from ausam.audit.table import ROW
from ausam.feedback import Feedback
from ausam_lab.data.classification import Classification, Labelled
from ausam_lab.data.problem import Problem
from ausam_lab.records import files
from ausam_lab.records.run import Findings, Suspect

FILE = "audit.npz"
FIRST = 10  # suspects in the record of a run


def start(data: Problem) -> Audit:
    """An empty audit of the training samples; without labels unless the targets are classes."""
    y = data.train_y
    return Audit(len(y), y, classes=data.num_outputs) if isinstance(data.task, Classification) else Audit(len(y))


def update(audit: Audit, feedback: Feedback, y: Tensor, smoothing: float) -> None:
    """Feed a step. What counts is the plain cross-entropy: a smoothed one hides how sure the network is."""
    if audit.labels is None:
        feedback = replace(feedback, outputs=None)  # they are not classes
    elif smoothing and isinstance(feedback.outputs, Tensor):
        excess = F.cross_entropy(feedback.outputs, y, reduction="none") - feedback.loss
        feedback = replace(feedback, loss=feedback.loss + excess, perturbed=feedback.perturbed + excess)
    audit.update(feedback)


def verdict(audit: Audit, policy: str) -> Verdict:
    """What the audit of a run with this policy says, as a Config spells it: what it used is not suggested again."""
    return audit.verdict(trusted=policy.lower().startswith("trusted"))


def findings(audit: Audit | None, data: Problem, policy: str) -> Findings | None:
    """What the record of a run says about its data; None if the losses say nothing about labels."""
    if audit is None or audit.labels is None or not audit.columns()["visits"].any():
        return None
    said, wrong, easy = verdict(audit, policy), audit.suspects(), audit.redundant()
    origin = data.origin if isinstance(data, Labelled) else torch.arange(len(audit))
    first = tuple(
        Suspect(int(origin[i]), int(audit.labels[i]), None if likely < 0 else int(likely), float(p))
        for i, likely, p in zip(wrong.index[:FIRST], wrong.suggested[:FIRST], wrong.probability[:FIRST], strict=True)
    )
    low, high = wrong.interval
    return Findings(said.kind, said.sentences, said.pair, wrong.rate, low, high, len(wrong.index), easy.share, first)


def write(folder: Path, audit: Audit | None) -> None:
    """Write the audit of a finished run."""
    if audit is None:
        return
    state = audit.state_dict()
    content: dict[str, Any] = {"layout": np.array(state["layout"]), "rows": state["rows"].numpy()}
    if audit.labels is not None:
        content |= {"labels": audit.labels, "classes": np.array(audit.classes)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **content)
    files.write(folder / FILE, buffer.getvalue())


def read(folder: Path) -> Audit:
    """The audit of a finished run; a ValueError if there is none, or it cannot be read."""
    path = folder / FILE
    again = "Remove it and result.json, and continue the run with --resume: it is written again from the checkpoint."
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            stored = dict(content)
        rows, labels, classes = stored["rows"], stored.get("labels"), stored.get("classes")
        audit = Audit(len(rows) // ROW.itemsize, labels, classes=None if classes is None else int(classes))
        state = {
            "layout": str(stored["layout"]),
            "rows": torch.from_numpy(rows),
            "touched": torch.zeros(len(audit), dtype=torch.bool),
        }
        audit.load_state_dict(state | {"classes": audit.classes})
    except FileNotFoundError:
        raise ValueError(
            f"{folder} has no audit ({FILE}): the run was finished by an earlier version, or has not ended yet. "
            "Continue it with ausam train --resume, or train again."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not readable: {str(error)[:100].rstrip('.')}. {again}") from None
    return audit
