"""SAM's own cost beyond two forward-backwards and one base step, ours against pytorch_optimizer's.

    pip install pytorch_optimizer && python benchmarks/sam_overhead.py

ResNet-18, one thread, the three steps taking turns; the figure is a ratio of medians within this run.
"""

from __future__ import annotations

import statistics
import sys

import torch
import torch.nn.functional as F  # noqa: N812
from pytorch_optimizer import SAM

from ausam.lab.experiments.bench import bare_step, one_thread, our_step, small_batch
from ausam.lab.networks.build import build


def peer_step():
    """One step of the peer's SAM."""
    (x, y), model = small_batch(), build("resnet18", 10, 3, seed=0)
    opt = SAM(model.parameters(), base_optimizer=torch.optim.SGD, rho=0.05, lr=1e-3, momentum=0.9)

    def step() -> None:
        opt.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(x), y))
        opt.first_step(zero_grad=True)
        torch.autograd.backward(F.cross_entropy(model(x), y))
        opt.second_step(zero_grad=True)

    return step


def main(repeats: int = 30) -> None:
    """Print the two costs and their ratio."""
    t = one_thread({"bare": bare_step(), "own": our_step(), "peer": peer_step()}, repeats)
    own, peer = (statistics.median(a - b for a, b in zip(t[k], t["bare"], strict=True)) for k in ("own", "peer"))
    print(
        f"SAM's own cost against pytorch_optimizer.SAM's, 11 M parameters: {own / peer:.2f}x "
        f"({1e3 * own:.1f} ms against {1e3 * peer:.1f} ms, medians of {repeats})"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
