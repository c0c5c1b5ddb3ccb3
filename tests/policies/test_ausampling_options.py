"""What AUSampling can do beyond the paper: off by default, and each against a transcription on plain lists."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ausam import AUSampling, Feedback, Plain, SelectiveBatchSampler, check
from tests.helpers import property_test, slow_odds


@property_test(200)
@given(
    g=st.lists(st.one_of(st.none(), st.integers(0, 12).map(lambda x: x / 4)), min_size=1, max_size=9),
    trim=st.sampled_from([None, 0.25, 0.5, 0.75]),
    mix=st.sampled_from([0.0, 0.25, 1.0]),
    s_min=st.sampled_from([0.125, 0.5]),
    odds=st.sampled_from(["minmax", "rank", "proportional"]),
)
def test_odds_with_trim_and_mix(g, trim, mix, s_min, odds):
    policy = AUSampling(s_min=s_min, ramp=0, trim=trim, mix=mix, odds=odds)
    scores = torch.tensor([[math.nan if x is None else x for x in g]], dtype=torch.float64)
    expected = torch.tensor([slow_odds(g, s_min, 1.0, trim, mix, odds)], dtype=torch.float64)
    torch.testing.assert_close(policy.odds_of(scores, 1), expected)


def test_a_score_below_zero_counts_as_zero_in_proportional_odds():
    policy = AUSampling(ramp=0, odds="proportional", score="progress")
    torch.testing.assert_close(
        policy.odds_of(torch.tensor([[-2.0, 1.0, 3.0, 0.0]]), 1)[0], torch.tensor([0.1, 1, 2.8, 0.1])
    )
    torch.testing.assert_close(policy.odds_of(torch.tensor([[-2.0, -1.0]]), 1)[0], torch.ones(2))


def trained(policy: AUSampling, values) -> list[list[list[int]]]:
    sampler = SelectiveBatchSampler(60, 10, policy, seed=4)
    epochs = []
    for epoch in range(4):
        epochs.append([])
        for index in map(torch.tensor, sampler):
            epochs[-1].append(index.tolist())
            sampler.update(Feedback(index, *values(index, epoch)))
    return epochs


def some(index, epoch):
    loss = ((index * 37 + epoch * 11) % 17) / 17
    return loss, loss + ((index * 13 + epoch * 5) % 19 - 9) / 19


def test_off_they_change_nothing():
    """The draw is that of the paper's odds, bit for bit: only the formula is repeated here."""

    class Paper(AUSampling):
        def odds_of(self, g, epoch):
            g = torch.where(g.isnan(), g.nanmean(dim=1, keepdim=True), g).nan_to_num(0.0)
            low, high = g.min(1, keepdim=True).values, g.max(1, keepdim=True).values
            upper = 0.1 + min(1.0, epoch / 2) * (1.0 - 0.1)
            return torch.where(high > low, 0.1 + (g - low) / (high - low) * (upper - 0.1), 1.0)

    assert trained(AUSampling(ramp=2), some) == trained(Paper(ramp=2), some)
    assert AUSampling(0.5, 0.1, 1.0, 0.15, 1, None, False) == AUSampling()  # and come after the older ones


def test_the_signed_score_ignores_a_loss_that_falls():
    def falling(index, epoch):
        loss, perturbed = some(index, epoch)
        return loss, torch.where(perturbed < loss, loss - 100.0, perturbed)

    signed = AUSampling(ramp=0, score="signed")
    assert trained(signed, some) == trained(signed, falling)
    assert trained(AUSampling(ramp=0), some) != trained(AUSampling(ramp=0), falling)


def test_progress_prefers_what_is_being_learned():
    """Samples below 20 become easier each epoch; the others stay as hard as they are, or as easy."""

    def values(index, epoch):
        loss = torch.where(index < 20, 3.0 - epoch, torch.where(index < 40, 5.0, 0.01))
        return loss, torch.full_like(loss, math.nan)  # what Plain knows

    policy = AUSampling(0.3, s_min=0.001, ramp=0, ema=0.0, score="progress", full_epochs=2)
    check(Plain(), policy)
    sampler = SelectiveBatchSampler(60, 60, policy, seed=4)
    for epoch in range(3):
        [index] = list(sampler)
        sampler.update(Feedback(torch.tensor(index), *values(torch.tensor(index), epoch)))
    assert len(index) == 18
    assert sum(i < 20 for i in index) >= 17
