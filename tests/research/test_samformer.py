"""SAMformer against its formula, number by number."""

import math
import runpy
from pathlib import Path

import torch

SCRIPT = Path(__file__).parents[2] / "research" / "forecasting" / "forecast.py"
SAMformer = runpy.run_path(str(SCRIPT))["SAMformer"]


def random_weights(model):
    rng = torch.Generator().manual_seed(1)
    for p in model.parameters():
        torch.nn.init.normal_(p, 0.3, 0.4, generator=rng)
    return model.double()


def slow(model, window):
    """One window, channel by channel, with plain loops."""
    levels = [(float(c.mean()), math.sqrt(float(((c - c.mean()) ** 2).mean()) + 1e-5)) for c in window]
    scale, shift = model.scale.flatten().tolist(), model.shift.flatten().tolist()
    u = [[(float(v) - m) / s * a + b for v in c] for c, (m, s), a, b in zip(window, levels, scale, shift, strict=True)]

    def linear(layer, row):
        weight, bias = layer.weight.tolist(), layer.bias.tolist()
        return [b + sum(w * v for w, v in zip(ws, row, strict=True)) for ws, b in zip(weight, bias, strict=True)]

    q, k, v = ([linear(layer, row) for row in u] for layer in (model.queries, model.keys, model.values))
    out = []
    for i in range(len(u)):
        odds = [math.exp(sum(a * b for a, b in zip(q[i], other, strict=True)) / math.sqrt(len(q[i]))) for other in k]
        mixed = [sum(o / sum(odds) * row[t] for o, row in zip(odds, v, strict=True)) for t in range(len(u[i]))]
        z = linear(model.forecast, [a + b for a, b in zip(u[i], mixed, strict=True)])
        out.append([(x - shift[i]) / (scale[i] + 1e-10) * levels[i][1] + levels[i][0] for x in z])
    return torch.tensor(out, dtype=torch.float64)


def test_against_a_slow_twin():
    model = random_weights(SAMformer(4, 3, look_back=6, width=2))
    x = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 5
    torch.testing.assert_close(model(x), torch.stack([slow(model, window) for window in x]))
