"""ausam diagnose: the figures are those of the last weights, for one run and for several; bad input is refused."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ausam.diagnostics import hessian_eigenvalues, sharpness
from ausam_lab.data.catalogue import resolve, split_problem
from ausam_lab.experiments import diagnose
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.records.store import typed
from ausam_lab.report.pages import flatness
from ausam_lab.report.pages.flatness import Flatness
from ausam_lab.training import run_folder, weights
from ausam_lab.training.state import network
from tests.lab.helpers import read, run

SMALL = ["--train-size", 100, "--test-size", 50, "--batch-size", 32, "--epochs", 1, "--threads", 1]
SAMPLES = 24


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Fewer radii and probes: the figures are compared, not believed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose, "RADII", (0.5, 1.0, 2.0))
        patch.setattr(diagnose, "BASIS", 1)
        yield


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("flat")
    assert run("compare", "sgd", "sam", "asam", "--seeds", 1, *SMALL, "--out", out) == 0
    assert run("diagnose", out, "--samples", SAMPLES) == 0
    return out


@pytest.fixture
def copied(compared, tmp_path):
    return shutil.copytree(compared, tmp_path / "copy")


def test_every_run_is_measured_in_the_order_of_the_table_within_one_radius(compared):
    flat = read(compared / "flatness.json")
    assert [m["name"] for m in flat["minima"]] == ["SGD", "SAM", "ASAM"]
    assert {m["rho"] for m in flat["minima"]} == {0.2}


def test_the_figures_are_those_of_the_last_weights_on_shared_samples(compared):
    for name, found in zip(("sgd", "sam", "asam"), read(compared / "flatness.json")["minima"], strict=True):
        folder = compared / "runs" / name / "seed-0"
        config = run_folder.saved_config(folder)
        data, _ = split_problem(config)
        index = torch.randperm(100, generator=diagnose.generator(diagnose.DRAWN))[:SAMPLES]
        x, y = data.normalise(data.train_x[index]), data.train_y[index]
        model = network(config, data).eval()
        model.load_state_dict(weights.of_run(folder))
        losses = lambda x, y, model=model: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
        with torch.no_grad():
            fitted = (model(x).argmax(1) == y).float()
            loss = float(losses(x, y).mean())
        assert found["sharpness"]["loss"] == pytest.approx(loss, rel=1e-5)
        assert found["line"]["loss"][10] == pytest.approx(loss, rel=1e-5)
        assert found["accuracy"] == pytest.approx(float(fitted.mean()))
        assert found["memorised"] == pytest.approx(float(fitted[data.wrong[index]].mean()))
        assert found["test"] == read(folder / "result.json")["test"]["value"]
        top = hessian_eigenvalues(model, losses, [(x, y)], k=5, steps=10)
        assert found["eigenvalues"]["values"] == pytest.approx(top.values, rel=1e-4)
        assert found["sharpness"]["worst"][1] == pytest.approx(
            sharpness(model, losses, [(x, y)], 0.2).worst[0], rel=1e-3
        )


def test_the_page_has_a_row_for_each_and_stands_alone(compared):
    page = (compared / "flatness.html").read_text()
    assert page.index('class="open"') < page.index("<table") < page.index("<figure")  # one epoch is not enough
    assert 'href="report.html"' in page
    assert all(f'<th scope="row">{name}</th>' in page for name in ("SGD", "SAM", "ASAM"))
    assert page.count('<figure class="chart">') == 2
    body = page.split("<script>")[0].replace("http://www.w3.org", "")
    assert "http://" not in body
    assert "NaN" not in body


def test_one_run_and_several_by_folder(copied, capsys):
    sam, sgd = (copied / "runs" / name / "seed-0" for name in ("sam", "sgd"))
    assert run("diagnose", sam, "--samples", SAMPLES) == 0
    (alone,) = read(sam / "flatness.json")["minima"]
    beside = read(copied / "flatness.json")["minima"][1]
    assert alone["sharpness"] == beside["sharpness"]
    assert alone["surface"]["loss"][6][6] == pytest.approx(alone["sharpness"]["loss"], rel=1e-5)
    assert (sam / "flatness.html").read_text().count('<figure class="chart') == 3
    assert run("diagnose", sgd, sam, "--samples", SAMPLES) == 0
    assert len(read(sgd / "flatness.json")["minima"]) == 2
    assert str(sgd / "flatness.html") in capsys.readouterr().out


def test_a_run_without_weights_is_named_beside_others_and_refused_alone(copied, capsys, caplog):
    sam = copied / "runs" / "sam" / "seed-0"
    for path in sam.glob("*.pt"):
        path.unlink()
    assert run("diagnose", copied, "--samples", SAMPLES) == 0
    assert [m["name"] for m in read(copied / "flatness.json")["minima"]] == ["SGD", "ASAM"]
    assert str(sam) in caplog.text
    assert run("diagnose", sam, "--samples", SAMPLES) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_verdict_ranks_only_runs_that_have_fitted_and_a_diverged_one_has_no_chart(compared):
    sgd, *others = typed(Flatness, read(compared / "flatness.json")).minima
    bad, (sam, asam) = replace(sgd, verdict="diverged"), (replace(m, verdict="nothing") for m in others)
    text = flatness.verdict(Flatness("", "", (bad, sam, asam)))
    assert text.startswith("Diverged: SGD. Lower the learning rate")
    assert f"{min((sam, asam), key=lambda m: m.eigenvalues.values[0]).name} is the flattest" in text
    assert "flattest" not in flatness.verdict(Flatness("", "", (bad, sam)))
    assert "the training loss rises from" in flatness.verdict(Flatness("", "", (sam,)))
    assert "<figure" not in flatness.render(Flatness("", "", (bad,)))  # losses such as 1e17


def pretending(folder, **settings):
    """The folder of a run with these settings that nobody has trained."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "checkpoint-00001.pt").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("settings", "flags", "message"),
    [
        ({"quantize": 4}, [], "full precision"),
        ({}, ["--samples", 5], "--samples is 5"),
        ({}, ["--device", "gpu"], 'device is "gpu"'),
        ({}, [], "no intact checkpoint"),
        pytest.param(
            {"data": "stick-figures", "model": "hrnet-w16-small", "train_size": 8, "test_size": 8},
            [],
            "only classification",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, capsys, settings, flags, message):
    assert run("diagnose", pretending(tmp_path / "run", **settings), *flags) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    for place in (tmp_path, tmp_path / "nowhere"):
        assert run("diagnose", place) == 2
        assert "Pass the folder (--out)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "radius"), [("sam", 0.2), ("asam", 0.2), ("rst", 0.2), ("plain", 0.2), ("gsam(rho=0.3)", 0.3)]
)
def test_the_radius_is_on_the_scale_of_sam(method, radius):
    config = resolve(method=method)
    assert diagnose.radius(config, method_and_policy(config, steps=10)[0]) == pytest.approx(radius)
