"""``ausam list``."""

import json

from ausam import METHODS, POLICIES
from ausam.lab.cli import listing
from ausam.lab.cli.main import main
from ausam.lab.registry.pairs import PAIRS


def test_list_shows_everything_with_its_cost(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {m["name"] for m in found["methods"]} == set(METHODS)
    assert {p["name"] for p in found["policies"]} == set(POLICIES)
    assert {p["name"] for p in found["pairs"]} == set(PAIRS)
    sam = next(m for m in found["methods"] if m["name"] == "SAM")
    assert (sam["forward"], sam["backward"]) == (2.0, 2.0)
    assert next(m for m in found["models"] if m["name"] == "resnet18")["parameters"] == 11_173_962
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for table in listing.everything().values() for name in [row["name"] for row in table])
