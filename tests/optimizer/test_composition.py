"""Every method with every policy: it trains, or it is refused at once."""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam import METHODS, POLICIES, SelectiveBatchSampler, SharpnessAware
from ausam.policies.signals import AT_PERTURBED_WEIGHTS
from tests.helpers import few_of, make, policy_for

N, BATCH = 48, 8
MORE_POLICIES = {
    "InfoBatch second": POLICIES["InfoBatch"](on="second"),
    "TopLoss el2n": POLICIES["TopLoss"](signal="el2n"),
    "AUSampling progress": POLICIES["AUSampling"](ramp=30, score="progress", full_epochs=2, trim=0.9, mix=0.5),
}
EVERY_POLICY = {name: policy_for(name, N) for name in POLICIES} | MORE_POLICIES


PAIRS = list(itertools.product(METHODS, EVERY_POLICY))


def goes(method, policy):
    """Whether the method gives what the policy ranks by."""
    return EVERY_POLICY[policy].signal not in AT_PERTURBED_WEIGHTS or make(method).sharpness != "never"


# Every method with AUSampling, and every policy with SAM; at night every pair.
FEW = [pair for pair in PAIRS if pair[0] == "SAM" or pair[1] == "AUSampling"]


@pytest.mark.parametrize("pair", few_of([pair for pair in PAIRS if goes(*pair)], *FEW), ids="-".join)
def test_a_pair_trains(pair):
    m, p = make(pair[0]), EVERY_POLICY[pair[1]]
    torch.manual_seed(0)
    x = torch.randn(N, 4)
    y = (x[:, 0] > 0).long()
    # Two positions a channel: a batch that is chosen down to one sample still has something to normalise.
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(nn.Linear(4, 16), nn.Unflatten(1, (8, 2)), norm, nn.Flatten(), nn.Tanh(), nn.Linear(16, 2))
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), m, model)
    sampler = SelectiveBatchSampler(N, BATCH, p)

    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    steps = 0
    with warnings.catch_warnings():
        if m.sharpness == "sometimes":  # by chance it may not have looked at perturbed weights yet
            warnings.filterwarnings("ignore", message="No score has reached the sampler before epoch 1")
        for _ in range(2):
            expected = len(sampler)
            batches = 0
            for chosen in sampler:
                index = torch.tensor(chosen)
                sampler.update(opt.backward(losses, x[index], y[index], index=index, weight=sampler.weight(index)))
                opt.step()
                opt.zero_grad()
                batches += 1
            assert batches == expected
            steps += batches
    assert opt.steps == steps
    assert opt.skipped == 0
    assert int(norm.num_batches_tracked) == steps
    # Feedback arrives: from every batch, or, where a method looks at perturbed weights only now and then, from some.
    seen = int((sampler.scores.count > 0).sum())
    if p.signal is None:  # the user sets the scores
        assert seen == 0
    elif m.sharpness == "sometimes" and p.signal in AT_PERTURBED_WEIGHTS:
        assert seen > 0
    else:
        assert seen >= N // 2
