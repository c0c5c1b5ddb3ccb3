"""Theorem 4: the bias of the gradient of the selected samples, and whether it vanishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ausam.diagnostics.arguments import count, generator, positive
from ausam.diagnostics.batches import Batch, size
from ausam.diagnostics.objective import LossFn, Objective
from ausam.diagnostics.samples import gradient_rows
from ausam.diagnostics.statistics import Array
from ausam.diagnostics.untouched import untouched
from ausam.policies import AUSampling, Full, Random, TopLoss
from ausam.policies.draws import kept_count
from ausam.sampler import Scores
from ausam_lab.paper.theory.inclusion import RATIO, inclusion_probabilities

GROUPS = 10


@dataclass(frozen=True, eq=False)
class Expected:
    """What a policy does to a mini-batch, on average over its draws.

    Attributes:
        inclusion: probability that each sample is kept.
        coefficient: expected factor of each sample's gradient in the mean over the kept samples; 1/n if unbiased.
        groups: the coefficients from each of ten groups of draws, to estimate the error; one group if exact.
        exact: whether the numbers come from a formula rather than from draws.
    """

    inclusion: Array
    coefficient: Array
    groups: Array
    exact: bool


def expected_selection(
    policy: Any, scores: Scores, epoch: int, candidates: Tensor, *, draws: int = 2000, seed: int = 0
) -> Expected:
    """The expectation of a policy's selection in one mini-batch, by a formula if there is one, else from draws.

    Exact for Full, TopLoss, Random and AUSampling. AUSampling(unbiased=True), whose weights are random too, and all
    other policies are estimated from draws. The scores are not changed.

    >>> import torch
    >>> from ausam import Random, Scores
    >>> from ausam_lab.paper.theory import expected_selection
    >>> expected_selection(Random(0.5), Scores(4), 1, torch.arange(4)).inclusion.tolist()
    [0.5, 0.5, 0.5, 0.5]

    Arguments:
        policy: a selection policy.
        scores: the sampler's table (``sampler.scores``).
        epoch: epoch for which the policy draws, >= 0.
        candidates: dataset indices of the mini-batch.
        draws: number of draws if there is no formula, >= 20.
        seed: seed of the draws.
    """
    n = len(candidates)
    row = candidates.to("cpu", torch.int64)[None]
    rng = generator(seed)
    if isinstance(policy, (Full, TopLoss)):
        kept, _ = policy.choose(scores, epoch, row, rng)
        inclusion = np.zeros(n)
        inclusion[kept[0].numpy()] = 1.0
        return _exact(inclusion, kept.shape[1])
    odds = _odds(policy, scores, epoch, row)
    if odds is not None:
        k = kept_count(policy.alpha, n)
        return _exact(inclusion_probabilities(odds, k), k)
    each = count("draws", draws, low=2 * GROUPS) // GROUPS
    inclusion, groups = np.zeros(n), np.zeros((GROUPS, n))
    for g in range(GROUPS):
        for kept, weight in _draw(policy, scores, epoch, row, rng, each):
            factor = np.ones(kept.shape) if weight is None else weight.double().numpy()
            np.add.at(groups[g], kept.numpy(), factor / kept.shape[-1] / each)
            np.add.at(inclusion, kept.numpy(), 1 / each / GROUPS)
    return Expected(inclusion, groups.mean(0), groups, exact=False)


@dataclass(frozen=True)
class Theorem4:
    """The expected gradient of the selected samples, compared with that of the mini-batch.

    Attributes:
        policy: name and settings of the policy.
        epoch: epoch of the draw.
        batch: number of samples, n.
        exact: whether expectations are exact rather than estimated from draws.
        gradient_norm: ``|g|`` of the mini-batch.
        bias: ``|E g_kept - g|``, with the contribution of the draws' noise subtracted.
        error: root mean square length of that noise; 0 if exact.
        relative: ``bias / |g|``.
        cosine: between ``E g_kept`` and ``g``.
        gap: ``rho |mean_i (1 - n c_i) <g_i, g>| / |g|``, with c_i the expected coefficient of sample i: to first order,
            how far the expected sharpness of the kept samples is from that of all samples.
        gap_as_written: the same with ``1 - p_i`` for ``1 - n c_i``, as in the proof, which divides the sum over the
            kept samples by n instead of alpha n and so makes their mean too small.
        paper: ``rho mean_i (1 - p_i) |g_i|``, the theorem's bound.
        corrected: ``rho mean_i |1 - n c_i| |g_i|``.
        paper_holds, corrected_holds: whether ``gap`` is within the bound.
    """

    policy: str
    epoch: int
    batch: int
    exact: bool
    gradient_norm: float
    bias: float
    error: float
    relative: float
    cosine: float
    gap: float
    gap_as_written: float
    paper: float
    corrected: float
    paper_holds: bool
    corrected_holds: bool


def theorem4(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Batch,
    policy: Any,
    scores: Scores,
    epoch: int,
    *,
    index: Tensor,
    rho: float,
    draws: int = 2000,
    seed: int = 0,
    chunk: int = 32,
) -> Theorem4:
    """The bias of a policy's expected gradient in one mini-batch, and theorem 4's bound.

        b = E[ mean over kept of w_i g_i ] - g = sum_i (c_i - 1/n) g_i
        the theorem:  | E_D DLP - E_kept DLP |  <=  rho mean_i (1 - p_i) |g_i|

    Theorem 4 of Deng et al., AAAI 2025, where "asymptotically unbiased" means that the right-hand side falls with the
    gradient norms. ``relative`` tells whether the bias falls faster than the gradient itself.

    >>> import torch, torch.nn.functional as F
    >>> from ausam import Random, Scores, TopLoss
    >>> from ausam_lab.paper.theory import theorem4
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> losses = lambda x, y: F.cross_entropy(model(x), y, reduction="none")
    >>> scores = Scores(8, decay=0.0)
    >>> scores.record(torch.arange(8), losses(x, y))
    >>> of = lambda policy: theorem4(model, losses, (x, y), policy, scores, 1, index=torch.arange(8), rho=0.05)
    >>> of(Random()).relative < 1e-6 < of(TopLoss()).relative
    True

    Arguments:
        model: the network, measured in eval mode (see :func:`ausam.diagnostics.sample_gradients`).
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, as for ``opt.backward``.
        batch: one mini-batch before selection, as the tuple that ``loss_fn`` takes.
        policy: a selection policy.
        scores: the sampler's table (``sampler.scores``).
        epoch: epoch for which the policy draws, >= 0.
        index: dataset index of each sample of the batch.
        rho: radius of the perturbation, > 0.
        draws: number of draws if there is no formula, >= 20.
        seed: seed of the draws.
        chunk: samples differentiated at once, >= 1.

    A policy that selects from the whole epoch (InfoBatch) treats the batch as the epoch, so pass all samples.
    Cost: a gradient per sample, a gradient of the batch, and the draws. Memory: (2 chunk + 13) x P.
    """
    rho, n = positive("rho", rho), size(batch)
    if index.shape != (n,):
        raise ValueError(
            f"index has shape {tuple(index.shape)}, but the batch has {n} samples. Pass one dataset index per sample."
        )
    expected = expected_selection(policy, scores, epoch, index, draws=draws, seed=seed)
    with untouched(model):
        objective = Objective(model, loss_fn, [batch], chunk=chunk)
        where = objective.params[0].device
        off = torch.from_numpy(expected.groups - 1 / n).to(where)
        biases = torch.zeros(len(off), objective.size, dtype=torch.float64, device=where)
        g = objective.gradient().double()
        unit = g / torch.linalg.vector_norm(g).clamp_min(1e-300)
        lengths, along, done = [], [], 0
        for rows in gradient_rows(objective):
            wide = rows.double()
            biases += off[:, done : done + len(rows)] @ wide
            lengths.append(torch.linalg.vector_norm(wide, dim=1).cpu())
            along.append((wide @ unit).cpu())
            done += len(rows)
        norms, projections = torch.cat(lengths).numpy(), torch.cat(along).numpy()
    size_g = float(torch.linalg.vector_norm(g))
    bias = biases.mean(0)
    noise = float((biases - bias).square().sum() / (len(off) - 1) / len(off)) if len(off) > 1 else 0.0
    length = max(0.0, float(bias.square().sum()) - noise) ** 0.5
    kept = g + bias
    scale = 1 - n * expected.coefficient
    gap = rho * abs(float((scale * projections).mean()))
    paper = rho * float(((1 - expected.inclusion) * norms).mean())
    corrected = rho * float((np.abs(scale) * norms).mean())
    return Theorem4(
        policy=str(policy),
        epoch=epoch,
        batch=n,
        exact=expected.exact,
        gradient_norm=size_g,
        bias=length,
        error=noise**0.5,
        relative=length / size_g if size_g else float("nan"),
        cosine=float(kept @ g) / max(float(torch.linalg.vector_norm(kept)) * size_g, 1e-300),
        gap=gap,
        gap_as_written=rho * abs(float(((1 - expected.inclusion) * projections).mean())),
        paper=paper,
        corrected=corrected,
        paper_holds=gap <= paper + 1e-9 * corrected,
        corrected_holds=gap <= corrected * (1 + 1e-9),
    )


def _odds(policy: Any, scores: Scores, epoch: int, row: Tensor) -> Array | None:
    """The odds of a draw whose inclusion probabilities have a formula; None for other policies."""
    if isinstance(policy, Random):
        return np.ones(row.shape[1])
    if not isinstance(policy, AUSampling) or policy.unbiased or policy.is_full(epoch):
        return None
    odds: Array = policy.odds_of(scores.of(row), epoch)[0].double().numpy()
    return odds if odds.min() > 0 and odds.max() <= RATIO * odds.min() else None


def _exact(inclusion: Array, k: int) -> Expected:
    coefficient = inclusion / k
    return Expected(inclusion, coefficient, coefficient[None], exact=True)


def _draw(
    policy: Any, scores: Scores, epoch: int, row: Tensor, rng: torch.Generator, times: int
) -> list[tuple[Tensor, Tensor | None]]:
    """Several draws of the policy: all at once if it selects within mini-batches, else one by one."""
    if getattr(policy, "scope", "batch") == "batch":
        return [policy.choose(scores, epoch, row.expand(times, -1), rng)]
    return [policy.choose(scores, epoch, row, rng) for _ in range(times)]
