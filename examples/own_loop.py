"""Your own loop: AUSAM on synthetic data, saved every epoch; run it again with the same file to continue.

python examples/own_loop.py run.pt --epochs 6
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, Indexed, SelectiveBatchSampler, SharpnessAware


def data(n, seed):
    """Two classes, divided by a circle."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x.norm(dim=1) > 1.2).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    train = Indexed(TensorDataset(*data(512, seed=1)))
    sampler = SelectiveBatchSampler(train, batch_size=32, policy=AUSampling(alpha=0.5, ramp=2), seed=0)
    loader = DataLoader(train, batch_sampler=sampler)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.05), model)

    parts = {"model": model, "opt": opt, "sampler": sampler}
    if args.file.exists():
        state = torch.load(args.file, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])

    def losses(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    while sampler.epoch < args.epochs:
        for x, y, index in loader:
            sampler.update(opt.backward(losses, x, y, index=index))
            opt.step()
            opt.zero_grad()
        torch.save({name: part.state_dict() for name, part in parts.items()}, args.file)

    model.eval()
    x, y = data(1000, seed=2)
    accuracy = (model(x).argmax(1) == y).float().mean()
    print(f"steps {opt.steps}, samples {int(sampler.scores.count.sum())}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
