"""``ausam list``."""

import json
from dataclasses import fields

from ausam import METHODS, POLICIES
from ausam_lab.cli import listing
from ausam_lab.cli.main import main
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.names.pairs import PAIRS
from ausam_lab.networks.build import MODELS


def shown(capsys, *argv):
    assert main(["list", *argv]) == 0
    return capsys.readouterr().out


def test_list_shows_everything_with_its_cost(capsys):
    tables = json.loads(shown(capsys, "--json"))
    assert {m["name"] for m in tables["methods"]} == set(METHODS)
    assert {p["name"] for p in tables["policies"]} == set(POLICIES)
    assert {p["name"] for p in tables["pairs"]} == set(PAIRS)
    sam = next(m for m in tables["methods"] if m["name"] == "SAM")
    assert (sam["forward"], sam["backward"]) == (2.0, 2.0)
    assert next(m for m in tables["models"] if m["name"] == "resnet18")["parameters"] == 11_173_962
    text = shown(capsys)
    assert all(name in text for table in listing.everything().values() for name in [row["name"] for row in table])


def test_a_method_with_its_arguments_ranges_and_use(capsys):
    text = shown(capsys, "looksam")
    assert text.startswith("LookSAM: method\n\nSAM every k steps;")
    assert "    k = 5  (whole number >= 1)\n        a SAM step every k steps" in text
    assert "    rho = 0.05  (number > 0)\n" in text
    assert text.rstrip().endswith("Cost: 1 + 1/k forward-backwards.")
    assert ">>>" not in text


def test_every_argument_is_explained():
    for name, cls in (METHODS | POLICIES).items():
        page = next(one for one in listing.named(name) if one["kind"] in ("method", "policy"))
        assert [a["name"] for a in page["arguments"]] == [f.name for f in fields(cls)], name
        assert [a["name"] for a in page["arguments"] if not a["about"]] == [], name
        assert page["about"].startswith((cls.__doc__ or "").partition("\n")[0]), name
        assert ">>>" not in listing.named_text([page]), name


def test_everything_else_has_its_page(capsys):
    for name in [*PAIRS, *MODELS, *DATASETS, "sam@0.5", "sam@0.5x0.25", "gsam + random(alpha=0.3)"]:
        text = shown(capsys, name)
        assert text.lower().startswith(f"{name}: ")
        assert len(text.splitlines()) >= 3, name


def test_pairs_data_sets_and_networks_say_what_they_are(capsys):
    assert "SAM@0.5x0.25 is SAM, with 0.5 of the epochs and 0.25 of the batch size." in shown(capsys, "sam@0.5x0.25")
    assert "AUSAM-0.5 is SAM + AUSampling(alpha=0.5)." in shown(capsys, "AUSAM-0.5")
    assert "ASAM is ASAM, rho 0.5 unless --rho says otherwise." in shown(capsys, "asam")
    digits = json.loads(shown(capsys, "digits", "--json"))
    assert [one["settings"] for one in digits] == [DATASETS["digits"].settings]
    assert "5,266 parameters for 3 channels and 10 classes." in shown(capsys, "resnet-tiny")


def test_a_name_of_two_things_shows_both(capsys):
    assert [one["kind"] for one in json.loads(shown(capsys, "sam", "--json"))] == ["pair", "method"]


def test_a_name_that_nothing_has_gets_help(capsys):
    assert main(["list", "loksam"]) == 2
    error = capsys.readouterr().err
    what = "method, policy, pair, network or data set"
    assert error == f'ausam: There is no {what} "loksam". Did you mean looksam? See ausam list.\n'
    assert main(["list", "zzz"]) == 2
    assert f'There is no {what} "zzz". Write one of their names. See ausam list.' in capsys.readouterr().err
