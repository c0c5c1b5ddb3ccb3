"""AUSAM, that is SAM with AUSampling, against a slow transcription of the paper: plan, scores and weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, Indexed, SelectiveBatchSampler, SharpnessAware
from tests.helpers import losses_of, slow_odds
from tests.methods.slow import apply, assert_same, network, sam_perturbation, sgd, slow_two_passes


@dataclass(frozen=True)
class Watched(AUSampling):
    """AUSampling that notes the mini-batches it was offered, what it knew of them and what it kept."""

    seen: list = field(default_factory=list)

    def choose(self, scores, epoch, candidates, rng):
        kept, weight = super().choose(scores, epoch, candidates, rng)
        odds = self.odds_of(scores.of(candidates), epoch) if epoch else [None] * len(candidates)
        self.seen.extend((c.tolist(), o, c[k].tolist()) for c, o, k in zip(candidates, odds, kept, strict=True))
        return kept, weight


@pytest.mark.parametrize("batchnorm", [False, True])
def test_ausam(batchnorm):
    n, size, alpha, rho = 22, 8, 0.5, 0.3
    rng = torch.Generator().manual_seed(5)
    x, y = torch.randn(n, 4, generator=rng, dtype=torch.float64), torch.randint(3, (n,), generator=rng)
    model = network(batchnorm=batchnorm)
    twin = copy.deepcopy(model)
    opt, slow = SharpnessAware(sgd(model), SAM(rho=rho), model), sgd(twin)
    policy = Watched(alpha=alpha, s_min=0.1, s_max=0.5, ramp=3)
    sampler = SelectiveBatchSampler(n, batch_size=size, policy=policy, seed=3)
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_sampler=sampler)
    dlp = {i: [] for i in range(n)}  # of each sample: every difference seen

    for epoch in range(6):
        policy.seen.clear()
        known = {i: sum(v) / len(v) for i, v in dlp.items() if v}
        used = []
        for xb, yb, index in loader:
            sampler.update(opt.backward(losses_of(model), xb, yb, index=index))
            opt.step()
            opt.zero_grad()

            rows = index.tolist()
            used.append(rows)
            before, after, g = slow_two_passes(twin, x[rows], y[rows], sam_perturbation(rho))
            apply(slow, g)
            for i, a, b in zip(rows, after.tolist(), before.tolist(), strict=True):
                dlp[i].append(abs(a - b))

        # The plan: mini-batches of 8, 8 and 6 that hold every sample once; all of each at first, then half.
        assert sorted(i for c, _, _ in policy.seen for i in c) == list(range(n))
        assert [len(c) for c, _, _ in policy.seen] == [8, 8, 6]
        assert [len(rows) for rows in used] == ([8, 8, 6] if epoch == 0 else [4, 4, 3])
        assert used == [kept for _, _, kept in policy.seen]
        for candidates, odds, kept in policy.seen:
            assert len(set(kept)) == len(kept)
            assert set(kept) <= set(candidates)
            if epoch:
                bound = 0.5 if epoch >= 3 else 0.1 + (0.5 - 0.1) * epoch / 3  # s_max, rising until epoch 3
                slowly = torch.tensor(slow_odds([known[i] for i in candidates], 0.1, bound))
                torch.testing.assert_close(odds, slowly, rtol=1e-4, atol=1e-5)

        adlp = torch.tensor([sum(dlp[i]) / len(dlp[i]) for i in range(n)])
        torch.testing.assert_close(sampler.scores.mean, adlp, rtol=0, atol=1e-6)
        assert sampler.scores.count.tolist() == [len(dlp[i]) for i in range(n)]
        torch.testing.assert_close(sampler.scores.last, torch.tensor([dlp[i][-1] for i in range(n)]), rtol=0, atol=1e-6)
        assert_same(model, twin, rtol=0, atol=1e-11)
    assert len({len(v) for v in dlp.values()}) > 1  # or the test saw no selection


def test_ausam_prefers_what_the_paper_says():
    # Two samples, one draw: the odds are the probabilities, here 0.1 against 1.
    policy = AUSampling(alpha=0.5, s_min=0.1, s_max=1.0, ramp=0)
    odds = policy.odds_of(torch.tensor([[0.02, 0.08, 0.05]]), epoch=7)
    torch.testing.assert_close(odds, torch.tensor([[0.1, 1.0, 0.55]]))
