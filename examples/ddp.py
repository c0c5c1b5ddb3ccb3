"""Your own loop in several processes: AUSAM with DistributedDataParallel, on synthetic data.

torchrun --standalone --nproc-per-node 2 examples/ddp.py

DDP needs no extra code: the optimizer detects the wrapped model and the sampler detects torch.distributed. The sampler
divides every mini-batch among the processes and exchanges the scores when an epoch begins.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, Indexed, SelectiveBatchSampler, SharpnessAware


def data(n, seed):
    """Two classes, divided by a circle."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x.norm(dim=1) > 1.2).long()


def train(epochs, save):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    model = DistributedDataParallel(net)
    dataset = Indexed(TensorDataset(*data(500, seed=1)))
    sampler = SelectiveBatchSampler(dataset, batch_size=16, policy=AUSampling(alpha=0.5, ramp=2), seed=0)
    loader = DataLoader(dataset, batch_sampler=sampler)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), SAM(rho=0.05), model)

    def losses(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    for _ in range(epochs):
        for x, y, index in loader:
            sampler.update(opt.backward(losses, x, y, index=index))
            opt.step()
            opt.zero_grad()
        sampler.exchange()  # in every process; then any of them can save
        if save and dist.get_rank() == 0:
            parts = {"model": net, "opt": opt, "sampler": sampler}
            torch.save({name: part.state_dict() for name, part in parts.items()}, save)

    if dist.get_rank() == 0:
        x, y = data(1000, seed=2)
        accuracy = (net(x).argmax(1) == y).float().mean()
        used = int(sampler.scores.count.sum())
        print(f"processes {dist.get_world_size()}, steps {opt.steps}, samples {used}, accuracy {accuracy:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--save", help="file for the state of model, optimizer and sampler")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args.epochs, args.save)  # a function of its own, because torch can hang if DDP's wrapper outlives the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
