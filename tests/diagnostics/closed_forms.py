"""Slow and literal: what the diagnostics are compared with."""

import torch
from torch import nn

from tests.helpers import flat


def full_hessian(model, loss_fn, *batch):
    """The exact Hessian of the mean loss, by torch.autograd.functional."""
    names, params = zip(*model.named_parameters(), strict=True)
    sizes = [p.numel() for p in params]

    def loss(w):
        parts = {n: v.view(p.shape) for n, v, p in zip(names, w.split(sizes), params, strict=True)}

        class Caller(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = model

            def forward(self):
                return loss_fn(*batch).mean()

        return torch.func.functional_call(Caller(), {f"inner.{n}": v for n, v in parts.items()}, ())

    return torch.autograd.functional.hessian(loss, flat([p.detach() for p in params]))
