"""Flatness: SAM and AUSAM find flatter minima than SGD, and so does SAM on a random half of every mini-batch.

    python -m research.theory.flatness            # measure on digits, write part "flatness" of digits.json
    python -m research.theory.flatness --smoke    # the same in seconds, and nothing is written

Eigenvalues, trace, sharpness and slices at the last weights, on all training samples; the geometry of SAM's step over
training; and how often each sample was used.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import scipy.stats
import torch
from research.theory.digits import BATCH, POLICIES, RHO, Run, Settings, main, trained
from research.theory.gradients import PerSample
from research.theory.theorem4 import expected_selection

from ausam import diagnostics as dg

RADII = [0.05, 0.1, 0.2, 0.5, 1.0]


def resting(run: Run, name: str, epoch: int) -> dict[str, float]:
    """Norm of the gradient of all samples and, for AUSAM, of what its policy would choose, expected over draws."""
    gradients = PerSample(run.model, run.losses).gradients((run.data.x, run.data.y))
    norms = {"gradient_norm": float(gradients.mean(0).norm())}
    if name.startswith("AUSAM"):
        policy, scores = POLICIES["AUSampling"][0], run.scores(run.dlp, epoch, 1.0)
        each = [
            expected_selection(policy, scores, epoch, index) for index in torch.arange(len(run.data.x)).split(BATCH)
        ]
        coefficient = torch.from_numpy(np.concatenate([e.coefficient for e in each])) / len(each)
        norms["chosen_gradient_norm"] = float((coefficient @ gradients).norm())
    return norms


def visits(run: Run) -> dict[str, float]:
    """How often samples were used, and samples with a wrong label relative to correct ones."""
    used = run.visits.double()
    wrong, clean = (float(used[mask].mean()) for mask in (run.data.wrong, ~run.data.wrong))
    return {"fewest": int(used.min()), "most": int(used.max()), "wrong": wrong, "clean": clean}


def geometry(run: Run, epoch: int) -> dict[str, float]:
    """SAM's gradient beside the plain one, mean over eight mini-batches."""
    run.at(epoch)
    steps = [step_geometry(run, batch) for batch in run.batches(8)]
    return {key: float(np.mean([step[key] for step in steps])) for key in steps[0]}


def step_geometry(run: Run, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
    """``g = grad L(w)`` and ``g_SAM = grad L(w + rho g / |g|)`` of one mini-batch.

    ``descent`` is the first-order decrease in loss of SAM's step relative to a plain one. ``loss_rank`` is the rank
    correlation of the samples' losses with their changes.
    """
    model = PerSample(run.model, run.losses)
    w, g = model.weights(), model.gradients(batch).mean(0)
    away = w + (RHO * g / g.norm()).float()
    sam = model.gradients(batch, away).mean(0)
    loss, perturbed = model.losses(batch).double(), model.losses(batch, away).double()
    cosine = float(torch.cosine_similarity(g, sam, dim=0))
    return {
        "gradient_norm": float(g.norm()),
        "sam_norm": float(sam.norm()),
        "cosine": cosine,
        "descent": float(g @ sam / (g @ g)),
        "orthogonal": (1 - cosine**2) ** 0.5,
        "loss": float(loss.mean()),
        "perturbed": float(perturbed.mean()),
        "loss_rank": float(scipy.stats.spearmanr(loss, (perturbed - loss).abs()).statistic),
    }


def between(first: Run, second: Run) -> dict:
    """The mean loss on the straight line through the last weights of two runs, on the data of the first."""
    model, batch = PerSample(first.model, first.losses), (first.data.x, first.data.y)
    ends = [model.weights(run.states[-1]) for run in (first, second)]
    where = torch.linspace(-0.5, 1.5, 41, dtype=torch.float64).tolist()
    losses = [float(model.losses(batch, torch.lerp(*ends, t)).double().mean()) for t in where]
    return {"position": where, "loss": losses, "samples": len(batch[0])}


def measure(settings: Settings) -> dict:
    rows, lines, steps = [], [], []
    runs, last = trained(settings), settings.epochs
    for name, run in runs.items():
        steps += [{"run": name, "epoch": epoch, **geometry(run, epoch)} for epoch in settings.watched]
        run.at(last)
        batches = run.batches()
        about = (run.model, run.losses, batches)
        rows.append(
            {
                "run": name,
                "accuracy": run.accuracy(),
                **resting(run, name, last),
                "weight_norm": float(torch.cat([p.detach().flatten() for p in run.model.parameters()]).norm()),
                "visits": visits(run),
                "eigenvalues": asdict(dg.hessian_eigenvalues(*about, k=5)),
                "trace": asdict(dg.hessian_trace(*about, probes=100)),
                "sharpness": asdict(dg.sharpness(*about, RADII)),
                "m_sharpness": asdict(dg.sharpness(*about, RADII, m=BATCH)),
                "adaptive": asdict(dg.sharpness(*about, RADII, adaptive=True)),
            }
        )
        lines.append({"run": name, **asdict(dg.loss_line(*about, radius=1.0, points=41))})
    line = between(runs["SGD 0"], runs["SAM 0"])
    return {"runs": rows, "lines": lines, "between": line, "steps": steps}


if __name__ == "__main__":
    main("flatness", measure)
