"""The paper's names and what they stand for."""

import pytest

from ausam import METHODS, POLICIES
from ausam.lab.problems.catalogue import resolve
from ausam.lab.registry.pairs import PAIRS, brief, configured, method_and_policy, pair


def test_names_are_pairs():
    config = resolve(epochs=30)
    for name in PAIRS:
        method_and_policy(configured(name, config), steps=480)
    for name in METHODS:
        found, part = pair(f"{name.lower()}-0.3")
        assert (found.method, found.policy, part) == (name, "AUSampling(alpha=0.3)", 1.0)
    found, part = pair("ausam-0.35@0.5")
    assert (found.label, found.method, found.policy, part) == ("AUSAM-0.35@0.5", "SAM", "AUSampling(alpha=0.35)", 0.5)
    method, policy = method_and_policy(configured("ausam-0.4@0.5", config), steps=240)
    assert (method, policy) == (METHODS["SAM"](rho=0.2), POLICIES["AUSampling"](alpha=0.4))
    assert configured("sam@0.5", config).epochs == 15
    assert configured("asam", config).rho == pytest.approx(2.0)


def test_a_pair_in_brief_shows_what_differs_from_the_defaults():
    config = resolve(epochs=30)
    shown = {name: " × ".join(map(brief, method_and_policy(configured(name, config), 480))) for name in PAIRS}
    assert shown["sgd"] == "Plain() × Full()"
    assert shown["ausam-0.4"] == "SAM(rho=0.2) × AUSampling(alpha=0.4)"
    assert shown["ausam-0.5"] == "SAM(rho=0.2) × AUSampling(alpha=0.5)"
    assert shown["ae-looksam"] == "AESAM(inner=LookSAM(rho=0.2), total_steps=480) × Full()"
    assert shown["sam+info"] == "SAM(rho=0.2) × InfoBatch(prune=0.5, epochs=30, on='second')"
