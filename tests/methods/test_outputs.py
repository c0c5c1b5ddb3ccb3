"""SAF and MESA compare logits: what they ask of a loss function."""

from __future__ import annotations

import pytest
import torch

from ausam import MESA, SAF, SharpnessAware
from tests.helpers import losses_of, refused
from tests.methods.slow import batches, network, sgd


@pytest.mark.parametrize("method", [SAF(), MESA()], ids=repr)
def test_outputs_are_asked_for(method):
    model = network()
    opt = SharpnessAware(sgd(model), method, model)
    (x, y), *_ = batches(1)
    name = type(method).__name__
    with refused(TypeError, "loss_fn returned only the losses", "z = model(x)", 'reduction="none"), z'):
        opt.backward(losses_of(model), x, y, index=torch.arange(9))
    with refused(TypeError, f"{name}: the outputs are of shape (9,)", "(n, classes)", 'reduction="none"), z'):
        opt.backward(lambda x, y: (model(x).sum(1),) * 2, x, y, index=torch.arange(9))
    with refused(TypeError, f"{name}: the outputs are a dict", "logits"):
        opt.backward(lambda x, y: (model(x).sum(1), {}), x, y, index=torch.arange(9))
