"""Cross-entropy plus Dice over the whole batch, with GradScaler and clipping: by a closure, or added to each row."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam import SAM, SharpnessAware
from tests.helpers import same_weights
from tests.ports.by_hand import RHO, sam_gradient, twins


def unet():
    # No bias before BatchNorm: its gradient is 0 up to rounding, and RMSprop would make a step of that.
    first = nn.Conv2d(1, 4, 3, padding=1, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))


def dice(z, y):
    """One number for the batch: 1 - 2 |A and B| / (|A| + |B|)."""
    p = z.softmax(1)[:, 1]
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


def batches():
    rng = torch.Generator().manual_seed(2)
    for _ in range(5):
        x = torch.randn(6, 1, 8, 8, generator=rng).double()
        yield x, (x[:, 0] > 0).long()


def scaled():
    return torch.amp.GradScaler("cpu", init_scale=256.0)


def finish(scaler, opt, model):
    """What every script does after the gradient is there."""
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()


@pytest.mark.parametrize("way", ["closure", "rows"])
def test_a_batch_level_loss(way):
    ours, theirs = twins(unet)
    opt = SharpnessAware(torch.optim.RMSprop(ours.parameters(), lr=0.01, momentum=0.9), SAM(rho=RHO), ours)
    scaler = scaled()
    for x, y in batches():
        if way == "closure":

            def closure(x=x, y=y):
                z = ours(x)
                loss = F.cross_entropy(z, y) + dice(z, y)
                scaler.scale(loss).backward()
                return loss

            opt.accumulate(closure, scale=scaler.get_scale())
        else:

            def losses(x, y):
                z = ours(x)
                return F.cross_entropy(z, y, reduction="none").mean((1, 2)) + dice(z, y)

            opt.backward(losses, x, y, backward=lambda loss: scaler.scale(loss).backward())
        finish(scaler, opt, ours)

    rms, scaler = torch.optim.RMSprop(theirs.parameters(), lr=0.01, momentum=0.9), scaled()
    for x, y in batches():

        def backward(x=x, y=y, scaler=scaler):
            z = theirs(x)
            scaler.scale(F.cross_entropy(z, y) + dice(z, y)).backward()

        sam_gradient(theirs, backward)
        finish(scaler, rms, theirs)
    same_weights(ours, theirs, rtol=1e-9, atol=1e-12)
