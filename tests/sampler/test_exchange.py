"""Feedback on its way into the scores: what waits on an accelerator, and precision."""

import pytest
import torch

from ausam import AUSampling, EpsilonGreedy, Feedback, Full, SelectiveBatchSampler, TopLoss
from ausam.policies.signals import SIGNALS
from ausam.sampler import scores
from tests.helpers import assert_equal

pytestmark = pytest.mark.filterwarnings("ignore:The first update of this pass")  # samples of no batch

N = 200


def batch(step, device="cpu", index_device=None, dtype=torch.float32):
    """Two samples per step, so that a sample is seen again after a hundred steps; on "meta" without values."""
    index = torch.tensor([2 * step, 2 * step + 1]) % N
    loss = torch.tensor([0.1 * step, 1.0], dtype=dtype)
    outputs = torch.tensor([[1.0, 0.0, -1.0], [0.0, float(step % 5), 1.0]])
    where = index_device or device
    return Feedback(index.to(where), loss.to(device), (loss + 0.5).to(device), outputs.to(device))


def table(sampler):
    """The columns; what a policy derived from them when an epoch began is not compared."""
    state = sampler.state_dict()["scores"]
    return {name: column for name, column in state.items() if isinstance(column, torch.Tensor)}


@pytest.fixture
def accelerator(monkeypatch):
    """Tensors of the CPU pass for an accelerator's; counts how often they are read."""
    reads = []
    monkeypatch.setattr(scores, "on_accelerator", lambda *_: True)
    validate = scores.Scores.validate
    monkeypatch.setattr(scores.Scores, "validate", lambda *a, **k: reads.append(1) or validate(*a, **k))
    return reads


@pytest.mark.parametrize("read", ["scores", "state_dict", "iterate", "pick", "len of a choice"])
def test_what_waits_is_read_before_anybody_looks(accelerator, monkeypatch, read):
    # A period of one: every epoch is a choice of its own, by all scores.
    policy = EpsilonGreedy(0.5, 0.0, period=1) if read in ("iterate", "len of a choice") else AUSampling(0.5, ramp=0)
    queued = SelectiveBatchSampler(N, 10, policy)
    for step in range(40):
        queued.update(batch(step))
    assert accelerator == []
    queued.set_epoch(1)
    if read == "scores":
        assert int(queued.scores.count.sum()) == 80
    elif read == "state_dict":
        assert int(queued.state_dict()["scores"]["count"].sum()) == 80
    elif read == "pick":
        queued.pick(torch.arange(10))
    else:
        next(iter(queued))
    assert len(accelerator) == 40
    monkeypatch.setattr(scores, "on_accelerator", lambda *_: False)
    direct = SelectiveBatchSampler(N, 10, policy)
    for step in range(40):
        direct.update(batch(step))
    assert_equal(table(queued), table(direct))


def test_order_is_kept_when_devices_are_mixed(monkeypatch):
    monkeypatch.setattr(scores, "on_accelerator", lambda index, _: int(index[0]) % 4 == 0)
    mixed = SelectiveBatchSampler(N, 10, TopLoss())  # which ranks by the latest loss
    next(iter(mixed))
    for step in range(150):
        mixed.update(batch(step))
    monkeypatch.setattr(scores, "on_accelerator", lambda *_: False)
    direct = SelectiveBatchSampler(N, 10, TopLoss())
    next(iter(direct))
    for step in range(150):
        direct.update(batch(step))
    assert_equal(table(mixed), table(direct))


def test_loading_a_state_forgets_what_waits(accelerator):
    queued = SelectiveBatchSampler(N, 10, Full())
    state = queued.state_dict()
    queued.update(batch(0))
    queued.load_state_dict(state)
    assert not bool(queued.scores.count.any())
    assert accelerator == []


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("index_device", ["meta", "cpu"])
def test_an_update_does_not_wait_for_the_device(signal, index_device):
    """Tensors without values: reading one, in any way, fails; and so the read must come with the last, not before."""
    sampler = SelectiveBatchSampler(N, 10, TopLoss(signal=signal))
    next(iter(sampler))
    for step in range(63):
        sampler.update(batch(step, "meta", index_device))
        assert sampler._current.consumed == 2 * (step + 1)
        len(sampler)
    with pytest.raises(NotImplementedError, match="meta tensor"):
        sampler.update(batch(63, "meta", index_device))


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2])
def test_differences_of_float64_losses_are_taken_in_float64(world):
    place = {} if world == 1 else {"rank": 0, "world_size": 2}
    sampler = SelectiveBatchSampler(4, 2, AUSampling(ramp=30), **place)
    loss = torch.tensor([1e4, 3e4], dtype=torch.float64)
    sharpness = torch.tensor([1e-6, 3e-7], dtype=torch.float64)
    assert bool(((loss + sharpness).float() == loss.float()).all())  # float32 cannot tell them apart
    sampler.update(Feedback(torch.tensor([0, 1]), loss, loss + sharpness))
    values = sampler.scores.last[:2] if world == 1 else sampler._scores._unshared[0][1]
    assert values.dtype == torch.float32  # what the table holds
    torch.testing.assert_close(values.double(), sharpness, rtol=1e-4, atol=0)
