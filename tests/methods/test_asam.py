"""ASAM against a slow, literal transcription, step by step."""

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
