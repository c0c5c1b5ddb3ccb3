"""Theorem 4: the gradient of the selected samples is asymptotically unbiased.

    python -m research.theory.theorem4            # measure on digits, write part "theorem4" of digits.json
    python -m research.theory.theorem4 --smoke    # the same in seconds, and nothing is written

It is not: relative to the gradient, the bias grows during training. The theorem bounds the bias by something that falls
with the gradient norms, which says nothing about their ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from research.theory.digits import BATCH, RHO, Settings, main, sharpness_aware
from research.theory.gradients import PerSample
from torch import Tensor, nn

from ausam import AUSampling, Full, Random, Scores, TopLoss
from ausam.policies import Policy
from ausam.policies.draws import kept_count

GROUPS = 10
RATIO = 1e3  # of the largest odds to the smallest; beyond it the quadrature is inaccurate


def inclusion_probabilities(odds, k: int, *, nodes: int = 256) -> np.ndarray:
    """The probability that each sample is among ``k`` drawn one by one in proportion to their odds.

        p_i = integral of  odds_i exp(-odds_i t)  P(fewer than k of the others are faster than t)  dt

    Sequential sampling without replacement is a race of exponential times (Efraimidis and Spirakis 2006). The number of
    others faster than t is a sum of independent coin tosses, whose distribution is built up one toss at a time.

    >>> inclusion_probabilities([1.0, 1.0, 2.0], 1).round(6).tolist()
    [0.25, 0.25, 0.5]

    Arguments:
        odds: one number > 0 per sample, the largest at most 1000 times the smallest.
        k: number of samples drawn.
        nodes: points of the Gauss-Legendre quadrature.

    Cost: ``n^2 k nodes`` operations, a tenth of a second for 32 of 64.
    """
    rate = np.asarray(odds, dtype=float)
    n = len(rate)
    if not 0 < rate.min() <= rate.max() <= RATIO * rate.min():
        raise ValueError(
            f"The odds lie between {rate.min():g} and {rate.max():g}, but the quadrature needs odds > 0 within a "
            "factor of 1000. Estimate the probabilities from random draws instead."
        )
    if k == n:
        return np.ones(n)
    points, weights = np.polynomial.legendre.leggauss(nodes)
    v, dv = (points + 1) / 2, weights / 2  # v = exp(-min odds * t), from 0 to 1
    power = rate / rate.min()
    slower = v[:, None] ** power  # nodes x n: probability that sample j takes longer than t
    below = np.zeros((n, len(v), k))  # of sample i's rivals: how many are faster than t, 0 .. k-1
    below[:, :, 0] = 1.0
    for j in range(n):
        stay = slower[:, j][None, :, None]
        rivals = np.arange(n) != j
        moved = below[rivals]
        moved[:, :, 1:] = moved[:, :, 1:] * stay + moved[:, :, :-1] * (1 - stay)
        moved[:, :, :1] *= stay
        below[rivals] = moved
    density = power[:, None] * v[None] ** (power[:, None] - 1)
    p = (density * below.sum(2) * dv).sum(1)
    if abs(p.sum() - k) > 1e-6 * k:
        raise ValueError(f"The probabilities sum to {p.sum():g}, not {k}. Increase nodes.")
    return p * (k / p.sum())  # the quadrature's last digits


@dataclass(frozen=True, eq=False)
class Expected:
    """What a policy does to a mini-batch, on average over its draws.

    Attributes:
        inclusion: probability that each sample is kept.
        coefficient: expected factor of each sample's gradient in the mean over the kept samples; 1/n if unbiased.
        groups: the coefficients from each of ten groups of draws, to estimate the error; one group if exact.
        exact: whether the numbers come from a formula rather than from draws.
    """

    inclusion: np.ndarray
    coefficient: np.ndarray
    groups: np.ndarray
    exact: bool


def expected_selection(
    policy: Policy, scores: Scores, epoch: int, candidates: Tensor, *, draws: int = 2000, seed: int = 0
) -> Expected:
    """The expectation of a policy's selection in one mini-batch, by a formula if there is one, else from draws.

    Exact for Full, TopLoss, Random and AUSampling. AUSampling(unbiased=True), whose weights are random too, and all
    other policies are estimated from draws. The scores are not changed.

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
    rng = torch.Generator().manual_seed(seed)
    if isinstance(policy, (Full, TopLoss)):
        kept, _ = policy.choose(scores, epoch, row, rng)
        inclusion = np.zeros(n)
        inclusion[kept[0].numpy()] = 1.0
        return _exact(inclusion, kept.shape[1])
    odds = _odds(policy, scores, epoch, row)
    if odds is not None:
        k = kept_count(policy.alpha, n)
        return _exact(inclusion_probabilities(odds, k), k)
    each = draws // GROUPS
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
    loss_fn,
    batch: tuple[Tensor, ...],
    policy: Policy,
    scores: Scores,
    epoch: int,
    *,
    index: Tensor,
    rho: float,
    draws: int = 2000,
    seed: int = 0,
) -> Theorem4:
    """The bias of a policy's expected gradient in one mini-batch, and theorem 4's bound.

        b = E[ mean over kept of w_i g_i ] - g = sum_i (c_i - 1/n) g_i
        the theorem:  | E_D DLP - E_kept DLP |  <=  rho mean_i (1 - p_i) |g_i|

    There "asymptotically unbiased" means that the right-hand side falls with the
    gradient norms. ``relative`` tells whether the bias falls faster than the gradient itself.

    Arguments:
        batch: one mini-batch before selection, as the tuple that ``loss_fn`` takes.
        policy: a selection policy.
        scores: the sampler's table (``sampler.scores``).
        epoch: epoch for which the policy draws.
        index: dataset index of each sample of the batch.
        rho: radius of the perturbation.
        draws: number of draws if there is no formula.
        seed: seed of the draws.
    """
    n = len(index)
    expected = expected_selection(policy, scores, epoch, index, draws=draws, seed=seed)
    gradients = PerSample(model, loss_fn).gradients(batch)
    g = gradients.mean(0)
    biases = torch.from_numpy(expected.groups - 1 / n) @ gradients
    norms, projections = gradients.norm(dim=1).numpy(), (gradients @ (g / g.norm().clamp_min(1e-300))).numpy()
    size_g = float(g.norm())
    bias = biases.mean(0)
    noise = float((biases - bias).square().sum() / (len(biases) - 1) / len(biases)) if len(biases) > 1 else 0.0
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
        cosine=float(kept @ g) / max(float(kept.norm()) * size_g, 1e-300),
        gap=gap,
        gap_as_written=rho * abs(float(((1 - expected.inclusion) * projections).mean())),
        paper=paper,
        corrected=corrected,
        paper_holds=gap <= paper + 1e-9 * corrected,
        corrected_holds=gap <= corrected * (1 + 1e-9),
    )


def _odds(policy: Policy, scores: Scores, epoch: int, row: Tensor) -> np.ndarray | None:
    """The odds of a draw whose inclusion probabilities have a formula; None for other policies."""
    if isinstance(policy, Random):
        return np.ones(row.shape[1])
    if not isinstance(policy, AUSampling) or policy.unbiased or policy.is_full(epoch):
        return None
    odds: np.ndarray = policy.odds_of(scores.of(row), epoch)[0].double().numpy()
    return odds if odds.min() > 0 and odds.max() <= RATIO * odds.min() else None


def _exact(inclusion: np.ndarray, k: int) -> Expected:
    coefficient = inclusion / k
    return Expected(inclusion, coefficient, coefficient[None], exact=True)


def _draw(
    policy: Policy, scores: Scores, epoch: int, row: Tensor, rng: torch.Generator, times: int
) -> list[tuple[Tensor, Tensor | None]]:
    """Several draws of the policy: all at once if it selects within mini-batches, else one by one."""
    if policy.scope == "batch":
        return [policy.choose(scores, epoch, row.expand(times, -1), rng)]
    return [policy.choose(scores, epoch, row, rng) for _ in range(times)]


FIELDS = ("gradient_norm", "bias", "error", "relative", "cosine", "gap", "gap_as_written", "paper", "corrected")
FIELDS += ("paper_holds", "corrected_holds")


def measure(settings: Settings) -> dict:
    """The bias of the expected gradient, relative to the gradient, over training."""
    rows = []
    for name, run in sharpness_aware(settings).items():
        for epoch in settings.watched[1:]:
            run.at(epoch)
            for policy_name, policy, scores in run.policies(epoch):
                results = []
                for b, batch in enumerate(run.batches(4)):
                    index = torch.arange(b * BATCH, (b + 1) * BATCH)
                    results.append(theorem4(run.model, run.losses, batch, policy, scores, epoch, index=index, rho=RHO))
                mean = {field: float(np.mean([getattr(r, field) for r in results])) for field in FIELDS}
                rows.append({"run": name, "epoch": epoch, "policy": policy_name, "exact": results[0].exact, **mean})
    return {"over_training": rows}


if __name__ == "__main__":
    main("theorem4", measure)
