"""Slices of the loss: the direction's normalisation, and the values."""

import numpy as np
import pytest
import torch
from torch import nn

from ausam.common.random import generator
from ausam.diagnostics import loss_line, loss_surface
from ausam.diagnostics.landscape import filter_direction
from ausam.diagnostics.objective import Objective


def test_every_filter_is_as_long_as_that_of_the_weights(conv):
    model, losses, x, y = conv
    objective = Objective(model.eval(), losses, [(x, y)])
    parts = objective.parts(filter_direction(objective, generator(0)))
    for p, d in zip(model.parameters(), parts, strict=True):
        if p.dim() < 2:
            assert not d.any()
        else:
            torch.testing.assert_close(d.flatten(1).norm(dim=1), p.detach().flatten(1).norm(dim=1))
            assert not torch.allclose(d, p)


def test_values_along_a_line_and_on_a_surface(net):
    model, losses, x, y = net
    objective = Objective(model.eval(), losses, [(x, y)])
    rng = generator(4)
    d1, d2 = filter_direction(objective, rng), filter_direction(objective, rng)
    weights = objective.weights()

    def at(vector):
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(vector, model.parameters())
            value = float(losses(x, y).mean())
            torch.nn.utils.vector_to_parameters(weights, model.parameters())
        return value

    line = loss_line(model, losses, [(x, y)], radius=0.5, points=5, seed=4)
    assert line.position == pytest.approx((-0.5, -0.25, 0.0, 0.25, 0.5))
    np.testing.assert_allclose(line.loss, [at(weights + t * d1) for t in line.position], rtol=1e-9)
    surface = loss_surface(model, losses, [(x, y)], radius=0.5, points=3, seed=4)
    expected = [[at(weights + s * d1 + t * d2) for t in (-0.5, 0, 0.5)] for s in (-0.5, 0, 0.5)]
    np.testing.assert_allclose(surface.loss, expected, rtol=1e-9)


def test_refused(net):
    model, losses, x, y = net
    with pytest.raises(ValueError, match="points is 1"):
        loss_line(model, losses, [(x, y)], points=1)
    bias = nn.Linear(2, 1)
    nn.init.zeros_(bias.weight)
    with pytest.raises(ValueError, match="no direction to look in"):
        loss_line(bias, lambda x: bias(x)[:, 0], [(torch.ones(2, 2),)])
