"""RST and AESAM decide from step to step: two processes must decide alike."""

from __future__ import annotations

import os
import tempfile

import torch
from torch import nn

from ausam import AESAM, RST, SAM, SharpnessAware
from tests.helpers import with_logits
from tests.methods.slow import batches, network, sgd


def in_two_processes(rank, where, queue):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)
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
        queue.put((rank, type(method).__name__, taken, [p.detach().tolist() for p in model.parameters()]))
    torch.distributed.destroy_process_group()


def test_two_processes_decide_alike_even_where_gradients_are_not_averaged():
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            context.Process(target=in_two_processes, args=(r, f"{folder}/meet", queue), daemon=True) for r in range(2)
        ]
        for w in workers:
            w.start()
        found = {}
        for _ in range(4):
            rank, name, taken, weights = queue.get(timeout=300)
            found[rank, name] = (taken, weights)
        for w in workers:
            w.join()
    for name in ("RST", "AESAM"):
        assert found[0, name] == found[1, name]
        assert len(set(found[0, name][0])) == 2
