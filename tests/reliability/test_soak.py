"""Memory does not grow with the number of steps."""

import gc
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ausam import METHODS, AUSampling, Full, SelectiveBatchSampler, SharpnessAware

SOAK = {
    "SAM": {},
    "LookSAM": {"k": 3},
    "FriendlySAM": {},
    "MESA": {"start": 5},
    "SAF": {"start": 2, "gap": 1},
    "VSAM": {"warmup": 5},
}


@pytest.mark.nightly
def test_7000_steps_do_not_grow():
    # in a process of its own, because threads that other tests have left behind allocate too
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        tensors, blocks, memory = alone.submit(soak).result()
    assert tensors <= 0
    assert blocks < 200
    assert memory < 8e6


def soak():
    """What 4,000 steps add: tensors, blocks of Python's memory, bytes of the process.

    After the first 3,000 of 7,000 steps nothing grows with their number.

    Each method takes 667 of the other 4,000. Were one tensor a step kept, by one method alone, 667 more would be alive,
    and as many blocks of Python's memory for any one object: no more tensors and 200 more blocks are tolerated, for
    caches that fill late. What only C++ holds, such as a graph a step, is some kilobytes of the process: 8 MB, which is
    2 kB a step, are left to its allocator. Where caches took more than that, another 4,000 steps must not.
    """
    torch.manual_seed(0)
    n, size = 256, 32
    x, y = torch.randn(n, 8), torch.randint(3, (n,))
    loops = []
    for name, settings in SOAK.items():
        layers = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        model = torch.nn.Sequential(*layers)
        base = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        policy = AUSampling(0.5, ramp=3) if name == "SAM" else Full()
        opt = SharpnessAware(base, METHODS[name](**settings), model)
        loops.append((model, opt, SelectiveBatchSampler(n, size, policy, seed=0)))

    def steps(count):
        for model, opt, sampler in loops:

            def losses(x, y, model=model):
                z = model(x)
                return F.cross_entropy(z, y, reduction="none"), z

            left = count // len(loops)
            while left > 0:
                for chosen in sampler:
                    index = torch.tensor(chosen)
                    sampler.update(opt.backward(losses, x[index], y[index], index=index))
                    opt.step()
                    opt.zero_grad()
                    left -= 1

    def measured():
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return tensors, sys.getallocatedblocks(), pages * resource.getpagesize()

    steps(3000)
    measured()  # what measuring itself keeps
    for _ in range(2):
        before = measured()
        steps(4000)
        grown = [b - a for a, b in zip(before, measured(), strict=True)]
        if grown[1] < 200:
            break
    return grown
