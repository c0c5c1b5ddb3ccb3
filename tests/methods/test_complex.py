"""Complex weights count as pairs of reals: a complex model and its pair of reals take the same steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ausam import METHODS, SharpnessAware
from tests.helpers import VARIANTS, make

X = torch.randn(8, 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
T = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


class Complex(nn.Module):
    """z = W x with complex W; the outputs of a sample are its real and imaginary parts."""

    def __init__(self, w):
        super().__init__()
        self.weight = nn.Parameter(torch.view_as_complex(w.clone()))

    def forward(self, x):
        return torch.view_as_real(torch.view_as_complex(x) @ self.weight.T)


class Pair(nn.Module):
    """The same with real and imaginary parts."""

    def __init__(self, w):
        super().__init__()
        self.weight = nn.Parameter(w.clone())

    def forward(self, x):
        a, b = x[..., 0], x[..., 1]
        c, d = self.weight[..., 0].T, self.weight[..., 1].T
        return torch.stack([a @ c - b @ d, a @ d + b @ c], dim=-1)


@pytest.mark.parametrize("name", [*METHODS, *VARIANTS])
def test_a_complex_model_equals_its_pair_of_reals(name):
    w = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    paths = []
    for kind in (Complex, Pair):
        model = kind(w)
        base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        opt = SharpnessAware(base, make(name), model)

        def losses(x, t, m=model):
            z = m(x).flatten(1)
            return (z - t.flatten(1)).square().sum(1), z

        path = []
        for _ in range(9):
            opt.backward(losses, X, T, index=torch.arange(8))
            opt.step()
            opt.zero_grad()
            p = next(model.parameters()).detach()
            path.append(torch.view_as_real(p).clone() if p.is_complex() else p.clone())
        paths.append(path)
    for a, b in zip(*paths, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
