"""torch's default precision and device are the user's: our own numbers do not depend on them."""

import contextlib

import pytest
import torch

from ausam import ESAM, POLICIES, RST, SAM, VSAM, Feedback, SelectiveBatchSampler, SharpnessAware
from tests.helpers import policy_for

pytestmark = pytest.mark.filterwarnings("ignore:.*sampler.weight was never called")


def chosen(policy):
    """What three epochs choose, with losses that follow from the index."""
    sampler = SelectiveBatchSampler(40, 8, policy, epochs=4)
    batches = []
    for _ in range(3):
        for batch in sampler:
            index = torch.tensor(batch, device="cpu")
            loss = (index * 0.37 % 1.0).float()
            sampler.update(Feedback(index, loss, loss + (index % 7) * 0.1, torch.stack([loss, 1 - loss, 0 * loss], 1)))
            batches.append(batch)
    again = SelectiveBatchSampler(40, 8, policy, epochs=4)
    again.load_state_dict(sampler.state_dict())
    return batches, list(again)


@contextlib.contextmanager
def default(kind):
    """Another default; "meta" stands for an accelerator, and fails on any number that should be on the CPU."""
    try:
        if kind == "meta":
            torch.set_default_device("meta")
        else:
            torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["float64", "meta"])
@pytest.mark.parametrize("name", POLICIES)
def test_the_sampler_does_not_depend_on_torchs_defaults(name, kind):
    policy = policy_for(name, 40)
    usual = chosen(policy)
    with default(kind):
        assert chosen(policy) == usual


@pytest.mark.parametrize("method", [SAM(0.1, m=2), SAM(0.1, ascent=0.5), RST(), ESAM(), VSAM(warmup=1)], ids=repr)
def test_a_method_draws_the_same_numbers(method):
    weights = []
    for where in (contextlib.nullcontext(), default("meta")):
        model = torch.nn.Linear(2, 1, device="cpu")
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.5)
        x = torch.linspace(-1, 1, 8, device="cpu").view(4, 2)
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), method, model)
        with where:
            for _ in range(3):
                opt.backward(lambda x, model=model: model(x).squeeze(1) ** 2, x)
                opt.step()
                opt.zero_grad()
        weights.append(model.weight.tolist())
    assert weights[0] == weights[1]
