"""How noisy is the gradient of a chosen part? The variance of unbiased weights against that of a random part.

A small network is trained on the embedded digits with SAM. At some epochs, each mini-batch of 128 samples has a
gradient g; a policy keeps a part of it and estimates g from that part. Printed is E |estimate - g|^2 / |g|^2 over many
draws, the mean over the mini-batches, for a random part and for unbiased draws (weights 1 / p) with odds of three
scores: the paper's, the loss, and the gradient norm, which would be ideal but costs a gradient per sample.

    python benchmarks/variance.py [--epochs 2 10] [--draws 2000]
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
import torch.nn.functional as F  # noqa: N812

from ausam import SAM, AUSampling, Random, Scores, SharpnessAware
from ausam_lab.data.catalogue import problem, resolve
from ausam_lab.networks.build import build

BATCH, RHO, LR = 128, 0.2, 0.05
SCORES = ("|L(w + e) - L(w)|", "loss", "gradient norm")


def variance(gram: torch.Tensor, policy, score: torch.Tensor, draws: int) -> float:
    """E |estimate - g|^2 / |g|^2 of the policy's estimate, from the inner products of the samples' gradients."""
    n = len(gram)
    scores = Scores(n)
    scores.record(torch.arange(n), score)
    kept, weight = policy.choose(scores, 1, torch.arange(n).expand(draws, n), torch.Generator().manual_seed(0))
    part = torch.ones_like(kept, dtype=torch.float64) if weight is None else weight.double()
    error = torch.full((draws, n), -1 / n, dtype=torch.float64).scatter_add_(1, kept, part / kept.shape[1])
    return float(((error @ gram) * error).sum(1).mean() / (gram.sum() / n**2))


def measure(model, losses, x, y, alpha: float, draws: int) -> dict[str, float]:
    """The variance of each way to choose a part, averaged over the mini-batches."""
    unbiased = AUSampling(alpha, ramp=0, unbiased=True)
    rows: dict[str, list[float]] = {}
    for start in range(0, len(y) - BATCH + 1, BATCH):
        bx, by = x[start : start + BATCH], y[start : start + BATCH]
        gradients = torch.stack([gradient(model, loss) for loss in losses(bx, by)])
        gram = gradients @ gradients.T
        mean = gradients.mean(0)
        score = dict(
            zip(
                SCORES, (dlp(model, losses, bx, by, mean), losses(bx, by).detach(), gram.diagonal().sqrt()), strict=True
            )
        )
        rows.setdefault("a random part", []).append(variance(gram, Random(alpha), score["loss"], draws))
        for odds in ("minmax", "proportional"):
            policy = dataclasses.replace(unbiased, odds=odds)
            for name in SCORES:
                key = f"unbiased, {odds} odds of the {name}"
                rows.setdefault(key, []).append(variance(gram, policy, score[name].float(), draws))
    return {name: sum(values) / len(values) for name, values in rows.items()}


def gradient(model, loss: torch.Tensor) -> torch.Tensor:
    """The gradient of one sample's loss, as a vector."""
    parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts]).double()


@torch.no_grad()
def dlp(model, losses, x, y, gradient: torch.Tensor) -> torch.Tensor:
    """The paper's score at these weights: how much SAM's perturbation changes the loss of each sample."""
    before, own = losses(x, y), [p.detach().clone() for p in model.parameters()]
    step = RHO * gradient.float() / gradient.float().norm()
    for p, part in zip(model.parameters(), step.split([p.numel() for p in own]), strict=True):
        p.add_(part.view_as(p))
    after = losses(x, y)
    for p, kept in zip(model.parameters(), own, strict=True):
        p.copy_(kept)
    return (after - before).abs()


def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--draws", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = problem(resolve(data="digits", label_noise=0.2, device="cpu"))
    x, y = data.normalise(data.train_x), data.train_y
    model = build("resnet-tiny", data.classes, data.channels, 0)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), SAM(rho=RHO), model)
    losses = lambda x, y: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    rng = torch.Generator().manual_seed(0)
    for epoch in range(1, max(args.epochs) + 1):
        model.train()
        for index in torch.randperm(len(y), generator=rng).split(64):
            opt.backward(losses, x[index], y[index])
            opt.step()
            opt.zero_grad()
        if epoch in args.epochs:
            model.eval()
            for alpha in (0.5, 0.125):
                print(f"epoch {epoch}, {alpha:g} of a mini-batch of {BATCH}")
                for name, value in measure(model, losses, x, y, alpha, args.draws).items():
                    print(f"    {name:62} {value:.3f}")


if __name__ == "__main__":
    main()
