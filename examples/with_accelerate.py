"""Hugging Face Accelerate: AUSAM with gradient accumulation, saved every epoch; run it again and it continues.

python examples/with_accelerate.py runs/mine
accelerate launch --cpu --num_processes 2 examples/with_accelerate.py runs/mine
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, Indexed, SelectiveBatchSampler, SharpnessAware
from ausam.integrations.accelerate import prepare


def data(n, seed):
    """Two classes, divided by a circle."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x.norm(dim=1) > 1.2).long()


def train(accelerator, folder, epochs):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    dataset = Indexed(TensorDataset(*data(512, seed=1)))
    policy = AUSampling(alpha=0.5, ramp=2)
    sampler = SelectiveBatchSampler(dataset, batch_size=16 // accelerator.num_processes, policy=policy, seed=0)
    loader = DataLoader(dataset, batch_sampler=sampler)
    opt = SharpnessAware(torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9), SAM(rho=0.05), net)
    model, opt, loader = prepare(accelerator, net, opt, loader)  # in place of accelerator.prepare
    if folder.exists():
        accelerator.load_state(folder)

    def losses(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    while sampler.epoch < epochs:
        for x, y, index in loader:
            with accelerator.accumulate(model):
                sampler.update(opt.backward(losses, x, y, index=index))
                opt.step()
                opt.zero_grad()
        accelerator.save_state(folder)

    if accelerator.is_main_process:
        x, y = data(1000, seed=2)
        accuracy = (net(x.to(accelerator.device)).argmax(1).cpu() == y).float().mean()
        used = int(sampler.scores.count.sum())
        steps = opt.optimizer.steps
        print(f"processes {accelerator.num_processes}, steps {steps}, samples {used}, accuracy {accuracy:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2)
    train(accelerator, args.folder, args.epochs)
    accelerator.free_memory()  # torch can hang if DDP's wrapper outlives the process group
    accelerator.end_training()


if __name__ == "__main__":
    main()
