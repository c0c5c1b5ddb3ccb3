"""The settings of a run: a leaf of the workbench, which repeats what the library allows."""

from typing import get_args

import pytest

from ausam.common.settings import rules
from ausam.optimizer.nonfinite import NonFinite
from ausam.optimizer.rho_schedule import Shape
from ausam_lab.config import Config


@pytest.mark.parametrize(("name", "allowed"), [("nonfinite", NonFinite), ("rho_schedule", Shape)])
def test_choices_are_those_of_the_library(name, allowed):
    rule, _ = rules(Config)[name]
    assert set(rule.names) == set(get_args(allowed))
