"""``ausam list``."""

from dataclasses import fields

import pytest

from ausam import METHODS, POLICIES
from ausam_lab.cli.main import main
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.names.pairs import PAIRS
from ausam_lab.networks.build import MODELS


def shown(capsys, *argv):
    assert main(["list", *argv]) == 0
    return capsys.readouterr().out


def test_list_shows_everything_with_its_cost(capsys):
    text = shown(capsys)
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    assert all(name in lines for table in (METHODS, POLICIES, PAIRS, MODELS, DATASETS) for name in table)
    assert lines["SAM"].startswith("SAM 2.00 + 2.00 ")
    assert lines["Random"].startswith("Random 0.50 ")
    assert lines["ausam-0.4"] == "ausam-0.4 SAM + AUSampling(alpha=0.4)"
    assert lines["resnet18"] == "resnet18 11,173,962"
    assert max(map(len, text.splitlines())) <= 80
    assert "`" not in text


@pytest.mark.parametrize("name", [*METHODS, *POLICIES])
def test_a_class_is_shown_with_every_argument(capsys, name):
    cls = (METHODS | POLICIES)[name]
    text = shown(capsys, name.lower())
    assert f"{cls.__name__}(" in text.replace(f"{cls.__name__}:", f"{cls.__name__}(")
    assert all(f"\n    {f.name}: " in text for f in fields(cls))
    assert max(map(len, text.splitlines())) <= 80
    assert "`" not in text


def test_everything_else_has_its_page(capsys):
    for name in [*PAIRS, *MODELS, *DATASETS, "sam@0.5", "gsam + random(alpha=0.3)"]:
        text = shown(capsys, name)
        assert text.lower().startswith(f"{name}: ")
        assert len(text.splitlines()) >= 3, name
    assert "SAM, 0.5 of the epochs, 0.25 of the batch size" in shown(capsys, "sam@0.5x0.25")
    assert "ASAM, rho 0.5" in shown(capsys, "asam")
    assert all(f"\n  {name} {value}" in shown(capsys, "digits") for name, value in DATASETS["digits"].settings.items())
    assert "5,266 parameters" in shown(capsys, "resnet-tiny")


@pytest.mark.parametrize(("name", "near"), [("loksam", "looksam"), ("zzz", "ausam list")])
def test_a_name_that_nothing_has_gets_help(capsys, name, near):
    assert main(["list", name]) == 2
    assert near in capsys.readouterr().err
