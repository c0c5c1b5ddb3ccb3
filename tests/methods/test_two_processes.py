"""Where two processes must decide alike: RST and AESAM from step to step, SAM(m=...) on the number of groups."""

from __future__ import annotations

import os

import torch
from torch import nn

from ausam import AESAM, RST, SAM, SharpnessAware
from tests.helpers import with_logits
from tests.methods.slow import EXACT, LR, batches, network, plus, sgd, slow_groups
from tests.processes import group

# Nine rows are three groups of at most four, eight are two: they agree on two.
ROWS, GROUPS = (9, 8), ([[0, 1, 2, 3, 4], [5, 6, 7, 8]], [[0, 1, 2, 3], [4, 5, 6, 7]])


def in_two_processes(folder):
    rank, outcomes = int(os.environ["RANK"]), {}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for method in (RST(SAM(0.2), gamma=2.0), AESAM(SAM(0.2), total_steps=12)):
        model = nn.parallel.DistributedDataParallel(network())
        opt = SharpnessAware(sgd(model), method, model)
        data = iter(batches(24, seed=10 + rank))
        taken = []
        for _ in range(12):
            with model.no_sync():  # as frameworks accumulate: nobody averages the gradient, yet all must decide alike
                taken.append(bool(opt.backward(with_logits(model), *next(data)).perturbed.isfinite().all()))
            opt.zero_grad()
            taken.append(bool(opt.backward(with_logits(model), *next(data)).perturbed.isfinite().all()))
            opt.step()
            opt.zero_grad()
        outcomes[type(method).__name__] = (taken, [p.detach().tolist() for p in model.parameters()])
    model = nn.parallel.DistributedDataParallel(network(batchnorm=False))
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), SAM(0.2, m=4), model)
    for x, y in batches(4, ROWS[rank], seed=rank):
        opt.backward(with_logits(model), x, y)
        opt.step()
        opt.zero_grad()
    outcomes["SAM"] = [p.detach().tolist() for p in model.parameters()]
    torch.save(outcomes, folder / f"{rank}.pt")


def test_two_processes_decide_alike(tmp_path):
    assert group(2, in_two_processes, tmp_path, seconds=300, GLOO_SOCKET_IFNAME="lo") == [0, 0]
    mine, theirs = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert mine == theirs
    for name in ("RST", "AESAM"):
        assert set(mine[name][0]) == {True, False}
    w = [p.detach().clone() for p in network(batchnorm=False).parameters()]
    for (x0, y0), (x1, y1) in zip(*(batches(4, n, seed=rank) for rank, n in enumerate(ROWS)), strict=True):
        ones = torch.ones(9, dtype=x0.dtype)
        g0, g1 = slow_groups(w, x0, y0, ones, 0.2, GROUPS[0]), slow_groups(w, x1, y1, ones, 0.2, GROUPS[1])
        w = plus(w, [(a + b) / 2 for a, b in zip(g0, g1, strict=True)], -LR)
    for p, q in zip(mine["SAM"], w, strict=True):
        torch.testing.assert_close(torch.tensor(p, dtype=q.dtype), q, **EXACT)
