"""Two processes: every method keeps their weights equal."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ausam import METHODS, SharpnessAware
from tests.helpers import make
from tests.processes import group

STEPS = 6
HOW = ALONE, VIEW, SYNC = (False, False), (True, False), (False, True)  # gradient_as_bucket_view, sync_perturbation


def trained(method, rank, bucket_view, sync_perturbation):
    """The weights, and the passes counted, of a few steps on data of this process's own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model = DistributedDataParallel(net, gradient_as_bucket_view=bucket_view)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = SharpnessAware(base, make(method), model, sync_perturbation=sync_perturbation)
    data = torch.Generator().manual_seed(rank)

    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    for step in range(STEPS):
        x = torch.randn(6, 4, generator=data)
        y = torch.randint(2, (6,), generator=data)
        opt.backward(losses, x, y, index=torch.arange(6) + 6 * (step % 2))
        opt.step()
        opt.zero_grad()
    return torch.cat([p.detach().flatten() for p in net.parameters()]), opt.samples_forward


def process(folder):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    outcomes = {}
    for name in METHODS:
        for how in HOW:
            weights, forward = trained(name, rank, *how)
            other = [torch.empty_like(weights) for _ in range(2)]
            dist.all_gather(other, weights)
            counts = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
            dist.all_gather(counts, torch.tensor([forward]))
            outcomes[name, how] = (torch.equal(*other), torch.equal(*counts), weights.tolist())
    if rank == 0:
        torch.save(outcomes, folder / "found.pt")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    assert group(2, process, folder, seconds=300) == [0, 0]
    return torch.load(folder / "found.pt")


def test_two_processes_stay_equal(outcomes):
    assert len(outcomes) == len(METHODS) * len(HOW)
    assert [case for case, (weights, passes, _) in outcomes.items() if not (weights and passes)] == []


def close(a, b):
    return a == pytest.approx(b, rel=1e-5, abs=1e-6)


def test_ddp_buckets_change_nothing(outcomes):
    assert [name for name in METHODS if not close(outcomes[name, VIEW][2], outcomes[name, ALONE][2])] == []


def test_one_perturbation_for_all_is_another_training(outcomes):
    for name in ("SAM", "ASAM", "FriendlySAM"):
        assert not close(outcomes[name, SYNC][2], outcomes[name, ALONE][2]), name


def test_without_a_perturbation_there_is_nothing_to_share(outcomes):
    assert outcomes["Plain", SYNC][2] == outcomes["Plain", ALONE][2]
