"""The record of a step: losses of each sample, in their own precision."""

from __future__ import annotations

import torch
from torch.optim import SGD

from ausam import SAM, Feedback, Plain, SharpnessAware
from tests.helpers import data, losses_of, network


def test_feedback_of_each_method():
    model = network()
    x, y = data()
    plain = SharpnessAware(SGD(model.parameters(), lr=0.1), Plain(), model).backward(losses_of(model), x, y)
    assert plain.index is None
    assert bool(plain.perturbed.isnan().all())
    assert not plain.loss.requires_grad
    model.zero_grad()
    sam = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.1), model).backward(
        losses_of(model), x, y, index=range(8)
    )
    torch.testing.assert_close(sam.loss, plain.loss, rtol=0, atol=0)
    assert bool((sam.sharpness > 0).all())
    assert sam.index.dtype == torch.int64


def test_sharpness_is_the_absolute_difference():
    feedback = Feedback(None, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 1.0, float("nan")]))
    assert feedback.sharpness[:2].tolist() == [0.5, 1.0]
    assert bool(feedback.sharpness[2].isnan())


def test_feedback_keeps_the_precision_of_the_losses():
    for dtype in (torch.float32, torch.float64):
        model = network(dtype=dtype)
        opt = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(1e-7), model)
        feedback = opt.backward(losses_of(model), *data(dtype=dtype))
        assert feedback.loss.dtype == feedback.perturbed.dtype == feedback.sharpness.dtype == dtype
    assert (feedback.sharpness > 0).all()  # in float32 the difference of the two would be lost
