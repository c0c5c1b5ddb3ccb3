"""A few steps of AUSAM with the installed package: what ``make release-check`` runs in a clean environment."""

from __future__ import annotations

import sys
from importlib.metadata import version

import torch
from torch.nn.functional import cross_entropy

import ausam

if version("ausam") != ausam.__version__:
    raise SystemExit(f"the package says {version('ausam')}, the module {ausam.__version__}")

torch.manual_seed(0)
x = torch.randn(64, 4)
y = (x[:, 0] > 0).long()
model = torch.nn.Linear(4, 2)
opt = ausam.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.5), ausam.SAM(rho=0.05), model)
sampler = ausam.SelectiveBatchSampler(64, batch_size=16, policy=ausam.AUSampling(alpha=0.5), epochs=2, seed=0)
seen = []
for _ in range(4):
    for rows in sampler:
        index = torch.tensor(rows)
        found = opt.backward(lambda a, b: cross_entropy(model(a), b, reduction="none"), x[index], y[index], index=index)
        sampler.update(found)
        opt.step()
        opt.zero_grad()
        seen.append(len(rows))
accuracy = (model(x).argmax(1) == y).float().mean().item()
if seen != [16] * 4 + [8] * 12 or accuracy < 0.9:
    raise SystemExit(f"batches of {seen} samples, accuracy {accuracy}")
sys.stdout.write(f"ausam {ausam.__version__} from {ausam.__file__}: accuracy {accuracy:.2f} after {opt.steps} steps\n")
