"""ASAM in two forms against slow, literal transcriptions and another library, step by step."""

from __future__ import annotations

import math

import pytest
import torch

from ausam import ASAM
from tests.methods.slow import BASES, GUARD, assert_follows


def asam_perturbation(rho, eta):
    def perturbation(named):
        t = {n: w.abs() + eta if "weight" in n else torch.ones_like(w) for n, (w, _) in named.items()}
        norm = math.sqrt(sum(float(x) ** 2 for n, (_, g) in named.items() for x in (t[n] * g).flatten())) + GUARD
        return {n: rho * t[n] ** 2 * g / norm for n, (_, g) in named.items()}

    return perturbation


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("batchnorm", [False, True])
@pytest.mark.parametrize(("rho", "eta"), [(0.5, 0.01), (2.0, 0.0)])
def test_step_by_step(rho, eta, batchnorm, base):
    assert_follows(ASAM(rho, eta), asam_perturbation(rho, eta), batchnorm, base)


def elementwise_perturbation(rho):
    """davda54/sam's adaptive=True: e = w^2 * g * rho / (norm of |w| * g), whatever the parameter is called."""

    def perturbation(named):
        norms = [torch.linalg.vector_norm(w.abs() * g) for w, g in named.values()]
        factor = rho / (torch.linalg.vector_norm(torch.stack(norms)) + GUARD)
        return {n: w**2 * g * factor for n, (w, g) in named.items()}

    return perturbation


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("batchnorm", [False, True])
def test_every_parameter_scaled_is_davda54s_form(batchnorm, base):
    assert_follows(ASAM(0.8, eta=0, scaled="all"), elementwise_perturbation(0.8), batchnorm, base)
