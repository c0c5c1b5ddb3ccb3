"""The tutorials run, what they say of their results holds, and what they show is what they compute."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.nightly  # they train

TUTORIALS = sorted((Path(__file__).parent.parent / "docs" / "tutorials").glob("*.ipynb"))


def clean_a_data_set(scope):
    flagged, wrong = torch.as_tensor(scope["errors"].index), scope["wrong"]
    assert wrong[flagged].float().mean() > 0.9
    assert wrong[flagged].sum() > 0.9 * wrong.sum()
    assert scope["accuracy"](scope["model"], scope["x"], scope["given"]) > 81  # more than the right labels
    left = int((torch.as_tensor(scope["labels"]) != scope["true"]).sum())
    assert left == int(wrong.sum() - wrong[flagged].sum())
    means = {name: sum(found) / len(found) for name, found in scope["results"].items()}
    as_given, trusted, corrected, both, right = means.values()
    assert min(trusted, corrected, both, right) > as_given + 3
    assert abs(trusted - corrected) < 1.5  # "about as much"


CLAIMS = {"clean-a-data-set": clean_a_data_set}


def words(text):
    """The text without its numbers, which differ between machines in the last digits."""
    return re.sub(r"[-\d.,\s]+", " ", text).strip()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_it_runs_and_shows_what_it_computes(path):
    scope = {"__name__": "tutorial"}
    drawings = 0
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile("".join(cell["source"]), str(path), "exec"), scope)
            shown = "".join("".join(output.get("text", "")) for output in cell["outputs"])
            assert words(shown) == words(printed.getvalue())
            drawings += sum("image/svg+xml" in output.get("data", {}) for output in cell["outputs"])
    assert drawings
    CLAIMS[path.stem](scope)
