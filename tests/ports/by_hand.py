"""SAM written out, as scripts have it: climb, come back, and BatchNorm moves in the first pass only."""

import copy

import torch
from torch import nn

RHO = 0.1


def sam_gradient(model, backward, *others):
    """Leave SAM's gradient in ``.grad``; ``backward()`` runs one forward and backward. Returns its first value.

    The buffers of the model, and those of other networks that run with it, keep what the first pass left.
    """
    every = [b for m in (model, *others) for b in m.buffers()]
    trained = [p for p in model.parameters() if p.requires_grad]
    first = backward()
    gradients = [p.grad.clone() for p in trained]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    weights = [p.detach().clone() for p in trained]
    buffers = copy.deepcopy(every)
    with torch.no_grad():
        for p, g in zip(trained, gradients, strict=True):
            p.add_(RHO * g / (norm + 1e-12))
            p.grad = None
    backward()
    with torch.no_grad():
        for p, w in zip(trained, weights, strict=True):
            p.copy_(w)
        for b, saved in zip(every, buffers, strict=True):
            b.copy_(saved)
    return first


def twins(build):
    """Two equal networks in double precision."""
    torch.manual_seed(0)
    first: nn.Module = build().double()
    return first, copy.deepcopy(first)
