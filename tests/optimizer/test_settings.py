"""Every setting of every method and policy is checked in one way: the range in the type of its field."""

from __future__ import annotations

import copy
import math
import pickle
import re
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import torch

from ausam import METHODS, POLICIES, SAM, VSAM, Plain, SharpnessAware
from ausam.common.settings import (
    Duration,
    OneOf,
    YesNo,
    rules,
)
from tests.helpers import EXAMPLES

CLASSES = {**METHODS, **POLICIES}
SETTINGS = [(name, field) for name, cls in CLASSES.items() for field in rules(cls)]
NOT_NUMBERS = ["0.05", None, True, [0.1], torch.zeros(2), 1j, object()]

NEEDED = {"AESAM": ["total_steps"], "ClassBalanced": ["labels"], "Trusted": ["labels", "epochs"]}

# Another default is another training for everybody who does not give it.
DEFAULTS = {
    "Plain": {},
    "SAM": {"rho": 0.05, "m": None, "ascent": None, "weighted": "both"},
    "ASAM": {"rho": 0.5, "eta": 0.01, "scaled": "weights"},
    "GSAM": {"rho": 0.05, "alpha": 0.4},
    "FriendlySAM": {"rho": 0.05, "sigma": 1.0, "lmbda": 0.9},
    "LookSAM": {"rho": 0.05, "k": 5, "alpha": 0.7},
    "ESAM": {"rho": 0.05, "beta": 0.6, "gamma": 0.5},
    "KSAM": {"rho": 0.05, "keep": 0.5},
    "VSAM": {
        **{"rho": 0.05, "window": 50, "blocks": 5, "max_part": 0.8, "alpha1": 0.13, "alpha2": 0.13},
        **{"beta": 0.7, "warmup": 1173, "last": 10},
    },
    "SAF": {"lam": 0.3, "tau": 5.0, "gap": 3, "start": 5, "device": None},
    "MESA": {"lam": 0.8, "tau": 5.0, "decay": 0.9995, "start": 5},
    "RST": {"inner": SAM(), "p": 0.5, "schedule": "constant", "gamma": 1.0, "total_steps": None},
    "AESAM": {"inner": SAM(), "delta": 0.9, "lambda1": -1.0, "lambda2": 1.0},
    "MomentumSAM": {"rho": 3.0},
    "PreviousGradientSAM": {"rho": 0.05},
    "WSAM": {"rho": 0.05, "gamma": 0.9, "decouple": True},
    "FunctionalSAM": {"rho": 0.05},
    "Full": {},
    "Random": {"alpha": 0.5, "full_epochs": 0},
    "Repeated": {"alpha": 0.5, "batch": "full"},
    "ClassBalanced": {"alpha": 0.5},
    "AUSampling": {
        **{"alpha": 0.5, "s_min": 0.1, "s_max": 1.0, "ramp": 0.15, "full_epochs": 1, "ema": None},
        **{"unbiased": False, "trim": None, "mix": 0.0, "score": "sharpness", "odds": "minmax", "epochs": None},
    },
    "Trusted": {"alpha": 0.5, "start": 0.25, "ema": 0.5, "doubt": 0.1, "chance_loss": None},
    "InfoBatch": {"prune": 0.5, "anneal": 0.125, "epochs": None, "on": "first"},
    "OrderDP": {"s": 0.75, "q": 0.85},
    "TopLoss": {"alpha": 0.5, "signal": "loss"},
    "Uncertainty": {"alpha": 0.5, "period": 10},
    "EpsilonGreedy": {"alpha": 0.5, "eps": 0.1, "signal": "loss", "decay": 0.2, "period": 10},
    "UCB": {"alpha": 0.5, "c": 1.0, "signal": "loss", "decay": 0.2, "period": 10},
    "Weighted": {"alpha": 1.0, "length": None, "replacement": True, "signal": None, "decay": 0.0},
}


def build(name, **settings):
    return CLASSES[name](**{**EXAMPLES.get(name, {}), **settings})


def illegal(rule, optional):
    """Values that a rule does not allow, with the error that each gets."""
    if isinstance(rule, OneOf):
        return [("no such name", ValueError), (3, ValueError)]
    if isinstance(rule, YesNo):
        return [(1, TypeError), ("yes", TypeError), (None, TypeError)]
    if isinstance(rule, Duration):
        return [(x, TypeError) for x in NOT_NUMBERS] + [(x, ValueError) for x in (-1, -0.5, 1.5, math.inf, math.nan)]
    bad = [(x, ValueError) for x in (math.inf, -math.inf, math.nan)]
    bad += [(x, TypeError) for x in NOT_NUMBERS if not (x is None and optional)]
    if math.isfinite(rule.low):
        bad.append((rule.low if rule.low_open else rule.low - 1, ValueError))
    if math.isfinite(rule.high):
        bad.append((rule.high if rule.high_open else rule.high + 1, ValueError))
    if rule.whole:
        bad.append((2.5, ValueError))
    return bad


def test_every_number_has_a_range():
    """A new field that holds a number and has no rule would be checked by nobody."""
    for name, cls in CLASSES.items():
        numbers = {f for f, hint in cls.__annotations__.items() if re.search(r"\b(float|int)\b", str(hint))}
        assert not {f for f in numbers if "ClassVar" not in str(cls.__annotations__[f])} - set(rules(cls)), name


def test_settings_cannot_be_changed_later():
    """A state that was saved with other settings is refused; so no setting may change behind it."""
    for name in CLASSES:
        made = build(name)
        for f in fields(made):
            with pytest.raises(FrozenInstanceError):
                setattr(made, f.name, 1)


def test_defaults_stay():
    for name, cls in CLASSES.items():
        given = {f.name: EXAMPLES[name][f.name] for f in fields(cls) if f.name in NEEDED.get(name, ())}
        made = cls(**given)
        assert {f.name: getattr(made, f.name) for f in fields(made) if f.init and f.name not in given} == DEFAULTS[name]


def test_what_the_range_does_not_allow_is_refused():
    wrong = []
    for name, field in SETTINGS:
        rule, optional = rules(CLASSES[name])[field]
        for value, kind in illegal(rule, optional):
            try:
                build(name, **{field: value})
                wrong.append((name, field, value, "accepted"))
            except (TypeError, ValueError) as error:
                said = str(error)
                if not (isinstance(error, kind) and said.startswith(f"{name}: {field} is ") and str(rule) in said):
                    wrong.append((name, field, value, said))
    assert wrong == []


def test_numbers_of_other_libraries_become_python_numbers():
    for value in (np.float32(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor([0.5])):
        assert type(SAM(value).rho) is float
        assert SAM(value) == SAM(0.5)
    assert type(VSAM(window=np.int64(50)).window) is int


@pytest.mark.parametrize("name", METHODS)
def test_a_method_can_be_copied_and_pickled(name):
    method = build(name)
    assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == method


def test_the_optimizer_checks_its_own():
    model = torch.nn.Linear(1, 1)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    for settings, kind in (({"seed": -1}, ValueError), ({"seed": "a"}, TypeError), ({"nonfinite": "warn"}, ValueError)):
        with pytest.raises(kind, match="SharpnessAware: "):
            SharpnessAware(base, Plain(), model, **settings)
