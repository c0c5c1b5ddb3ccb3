"""ausam diagnose compare DIR: the minima of a comparison."""

import pytest
import torch
import torch.nn.functional as F

from ausam_lab.experiments.diagnose.flatness import diagnose_comparison
from ausam_lab.experiments.diagnose.subject import open_run
from ausam_lab.records import store
from ausam_lab.report.pages.flatness import FlatComparison, pictures
from tests.lab.helpers import run

SMALL = ["--train-size", 100, "--test-size", 50, "--batch-size", 32, "--epochs", 1, "--threads", 1]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("flat")
    assert run("compare", "sgd", "sam", "ausam-0.5", "--seeds", 1, *SMALL, "--out", out) == 0
    assert run("diagnose", "compare", out, "--samples", 32) == 0
    return out


def read(folder):
    return store.read(folder / "flatness.json", FlatComparison)


def test_every_run_is_measured_in_the_order_of_the_table(compared):
    flat = read(compared)
    assert [r.name for r in flat.runs] == ["sgd", "sam", "ausam-0.5"]
    assert [r.label for r in flat.runs] == ["SGD", "SAM", "AUSAM-0.5"]
    assert [(b.first, b.second) for b in flat.between] == [("SGD", "SAM"), ("SGD", "AUSAM-0.5")]
    assert flat.not_measured == ()
    said = [f.text for f in flat.findings if "minimum" in f.text]
    assert [text.partition("'")[0] for text in said] == ["SAM", "AUSAM-0.5", "AUSAM-0.5"]


def test_the_loss_is_that_of_the_last_weights_on_shared_samples(compared):
    for r in read(compared).runs:
        subject = open_run(compared / "runs" / r.name / "seed-0", 32)
        subject.at(1)
        with torch.no_grad():
            loss = float(F.cross_entropy(subject.model.eval()(subject.x), subject.y))
        assert r.whole.loss == pytest.approx(loss, rel=1e-5)
        assert r.line.loss[len(r.line.loss) // 2] == pytest.approx(loss, rel=1e-5)
    ends = read(compared).between[0].slice.loss
    assert ends[0] == pytest.approx(read(compared).runs[0].whole.loss, rel=1e-4)
    assert ends[-1] == pytest.approx(read(compared).runs[1].whole.loss, rel=1e-4)


def test_a_method_has_one_colour_in_all_charts(compared):
    def scales(part):
        if isinstance(part, dict):
            yield from [part["color"]["scale"]] if "scale" in part.get("color", {}) else []
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            yield from scales(inner)

    for picture in pictures(read(compared)):
        assert {tuple(scale["domain"]) for scale in scales(picture.spec)} == {("SGD", "SAM", "AUSAM-0.5")}


def test_again_measures_nothing(compared):
    pieces = sorted(compared.glob("**/diagnosis/*.json"))
    times = [p.stat().st_mtime_ns for p in pieces]
    before = read(compared)
    again = diagnose_comparison(compared, 32, before.command, lambda name, total: None)
    assert [p.stat().st_mtime_ns for p in pieces] == times
    assert again.runs == before.runs
    assert again.findings == before.findings


def test_the_page_has_a_row_for_each_and_stands_alone(compared):
    page = (compared / "flatness.html").read_text()
    assert page.count('<th scope="row">') == 3 + 3  # a line for each method, then one for each run
    assert page.index("the flattest") < page.index("<table") < page.index("<figure") < page.index("Every run")
    assert "AUSAM-0.5&#39;s minimum" in page
    assert "http://" not in page.split("<script>")[0].replace("http://www.w3.org", "")


def test_a_run_that_has_not_begun_is_left_out_and_named(compared, tmp_path, capsys):
    import shutil

    out = tmp_path / "flat"
    shutil.copytree(compared, out)
    for path in (out / "runs" / "sam" / "seed-0").glob("*.pt"):
        path.unlink()
    flat = diagnose_comparison(out, 32, "", lambda name, total: None)
    assert [r.name for r in flat.runs] == ["sgd", "ausam-0.5"]
    assert [x.part for x in flat.not_measured] == ["sam seed 0"]


def test_a_comparison_is_no_run(compared, capsys):
    assert run("diagnose", compared) == 2
    assert f"For a comparison use ausam diagnose compare {compared}." in capsys.readouterr().err


def test_how_well_each_has_fitted_its_samples(compared):
    flat = read(compared)
    for r in flat.runs:
        subject = open_run(compared / "runs" / r.name / "seed-0", 32)
        subject.at(1)
        with torch.no_grad():
            right = subject.model.eval()(subject.x).argmax(1) == subject.y
        assert r.fit.accuracy == pytest.approx(float(right.float().mean()))
        wrong = subject.data.wrong[subject.index]
        assert r.fit.memorised == pytest.approx(float(right[wrong].float().mean()))
    assert flat.findings[-1].text.startswith("Samples that are given their training label: SGD ")
