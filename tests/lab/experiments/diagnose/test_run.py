"""ausam diagnose RUN: the figures are those of the saved weights, the work continues, bad input is refused."""

import html.parser
import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments.diagnose import measures
from ausam_lab.experiments.diagnose.measures import MEASUREMENTS
from ausam_lab.experiments.diagnose.pieces import over_training
from ausam_lab.experiments.diagnose.run import diagnose
from ausam_lab.experiments.diagnose.subject import ROOM, open_run, radius_of, spread
from ausam_lab.records import store
from ausam_lab.registry.from_config import method_and_policy
from ausam_lab.report.pages.diagnosis import SECTIONS, Diagnosis, GeometryAt, GeometryResult
from ausam_lab.training import snapshots
from ausam_lab.training.loop import ALONE, begin, train
from tests.lab.helpers import read, run

SMALL = {"train_size": 200, "test_size": 100, "batch_size": 32, "threads": 1}
SAMPLES = 64


def quiet(name, total):
    pass


@pytest.fixture(scope="module")
def trained(four_epochs, tmp_path_factory):
    """An AUSAM run of four epochs that keeps them all."""
    return shutil.copytree(four_epochs, tmp_path_factory.mktemp("diagnose") / "run")


@pytest.fixture(scope="module")
def diagnosed(trained):
    """The same with its diagnosis: all parts."""
    assert run("diagnose", trained, "--samples", SAMPLES) == 0
    return trained


@pytest.fixture
def copied(trained, tmp_path):
    """The run without anything measured."""
    out = tmp_path / "run"
    shutil.copytree(trained, out, ignore=shutil.ignore_patterns("diagnosis*"))
    return out


def diagnosis_in(folder):
    return store.read(folder / "diagnosis.json", Diagnosis)


def test_every_measurement_has_a_section():
    assert list(MEASUREMENTS) == list(SECTIONS)


def test_everything_is_measured_and_has_a_sentence(diagnosed):
    diagnosis = diagnosis_in(diagnosed)
    assert diagnosis.not_measured == ()
    assert all(getattr(diagnosis, part) is not None for part in SECTIONS)
    assert list(dict.fromkeys(f.part for f in diagnosis.findings)) == list(SECTIONS)
    assert [row.epoch for row in diagnosis.geometry.rows] == [0, 1, 2, 3, 4]
    assert diagnosis.conditions.samples == SAMPLES
    assert diagnosis.conditions.rho == 0.2


def test_the_subject_is_the_run(trained):
    subject = open_run(trained, SAMPLES)
    before = begin(subject.config, ALONE).model.state_dict()
    assert all(torch.equal(v, before[k]) for k, v in subject.state(0).items())
    saved = snapshots.available(trained)[-1].load()
    subject.at(4)
    assert all(torch.equal(v, saved["model"][k]) for k, v in subject.model.state_dict().items())
    assert torch.equal(subject.y, subject.data.train_y[subject.index])
    assert torch.equal(subject.x, subject.data.normalise(subject.data.train_x[subject.index]))
    assert len(set(subject.index.tolist())) == SAMPLES


def test_visits_are_those_of_the_run(diagnosed):
    selection = diagnosis_in(diagnosed).selection
    used = [json.loads(line)["samples"] for line in (diagnosed / "metrics.jsonl").read_text().splitlines()]
    assert selection.mean * 200 == pytest.approx(sum(used))
    counts = [s.load()["sampler"]["scores"]["count"] for s in snapshots.available(diagnosed)]
    worst = 0
    for i in range(200):
        seen = [int(c[i]) for c in counts]
        gap = longest = 0
        for before, now in zip([0, *seen], seen, strict=False):
            gap = 0 if now > before else gap + 1
            longest = max(longest, gap)
        worst = max(worst, longest)
    assert selection.worst_gap == worst
    assert (selection.period, selection.epochs) == (1, 4)
    assert sum(g.samples for g in selection.groups["class"]) == 200
    assert [g.name for g in selection.groups["label"]] == ["clean", "wrong"]


def test_a_run_that_does_not_rank_by_sharpness_is_measured_too(tmp_path):
    out = tmp_path / "run"
    for _ in train(resolve(method="plain", epochs=2, every=1, **SMALL), out):
        pass
    diagnosis = diagnose(out, ["geometry", "selection"], SAMPLES, "", quiet)
    assert diagnosis.selection.worst_gap == 0
    assert "score" not in diagnosis.selection.groups
    assert diagnosis.conditions.rho_from == "that of SAM in the run's settings"


def test_the_first_visit_counts_although_progress_has_no_value_for_it(tmp_path):
    out = tmp_path / "run"
    config = resolve(method="plain", policy="ausampling(score=progress)", ramp=0, epochs=3, every=1, **SMALL)
    for _ in train(config, out):
        pass
    selection = diagnose(out, ["selection"], SAMPLES, "", quiet).selection
    used = [json.loads(line)["samples"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert selection.mean * 200 == pytest.approx(sum(used))
    assert selection.never == 0
    assert selection.fewest == 1
    assert selection.worst_gap == 2  # some samples were used in the first epoch alone


def test_again_measures_nothing_and_says_the_same(diagnosed):
    before = diagnosis_in(diagnosed)
    times = {path: path.stat().st_mtime_ns for path in diagnosed.glob("diagnosis/*.json")}
    again = diagnose(diagnosed, None, SAMPLES, before.command, quiet)
    assert replace(again, created=before.created) == before
    assert {path: path.stat().st_mtime_ns for path in diagnosed.glob("diagnosis/*.json")} == times


def test_a_diagnosis_that_was_killed_continues(copied, diagnosed, monkeypatch):
    calls = []
    original = measures.geometry

    def dying(subject, epoch):
        calls.append(epoch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(subject, epoch)

    geometry = over_training("geometry", GeometryAt, dying, lambda _, rows: GeometryResult(tuple(rows)))
    monkeypatch.setitem(MEASUREMENTS, "geometry", geometry)
    with pytest.raises(KeyboardInterrupt):
        diagnose(copied, ["geometry"], SAMPLES, "", quiet)
    assert not (copied / "diagnosis.json").exists()
    assert len(list(copied.glob("diagnosis/geometry-*.json"))) == 2
    diagnosis = diagnose(copied, ["geometry"], SAMPLES, "", quiet)
    assert calls == [0, 1, 2, 2, 3, 4]
    assert diagnosis.geometry == diagnosis_in(diagnosed).geometry


def test_a_damaged_piece_is_measured_again(copied, caplog):
    first = diagnose(copied, ["geometry"], SAMPLES, "", quiet)
    piece = next(copied.glob("diagnosis/geometry-00002-*.json"))
    content = read(piece)
    content["step"]["cosine"] = "half"
    piece.write_text(json.dumps(content))
    assert diagnose(copied, ["geometry"], SAMPLES, "", quiet).geometry == first.geometry
    assert "cosine" in caplog.text
    assert "again" in caplog.text


def test_other_samples_are_other_figures(copied):
    one = diagnose(copied, ["geometry"], SAMPLES, "", quiet)
    two = diagnose(copied, ["geometry"], 2 * SAMPLES, "", quiet)
    assert one.geometry != two.geometry
    assert two.conditions.samples == 2 * SAMPLES


class Ids(html.parser.HTMLParser):
    """Every id of a page, and every reference to one."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.used = [], set(re.findall(r"url\(#([^)]+)\)", text))
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.ids += [v for k, v in attrs if k == "id"]


def test_the_page_stands_alone(diagnosed):
    page = (diagnosed / "diagnosis.html").read_text()
    body = page.split("<script>")[0]
    assert "http://" not in body.replace("http://www.w3.org", "")
    assert "https://" not in body
    named = Ids(body)
    assert len(set(named.ids)) == len(named.ids)
    assert named.used <= set(named.ids)
    assert body.count('<figure class="chart">') == body.count("<noscript><svg") >= 8
    assert "NaN" not in body


def test_the_page_begins_with_the_flatness_of_the_model(diagnosed):
    page = (diagnosed / "diagnosis.html").read_text()
    places = [page.index(f'<h2 id="{name}">') for name in SECTIONS]
    assert places == sorted(places)
    assert next(iter(SECTIONS)) == "sharpness"


# -- bad input ---------------------------------------------------------------------------------------------------------


def refused(capsys, *args):
    assert run("diagnose", *args) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(err) == 1
    return err[0]


def test_no_run(tmp_path, capsys):
    assert "holds no run. Pass the folder (--out) of ausam train." in refused(capsys, tmp_path)
    assert "holds no run" in refused(capsys, tmp_path / "nowhere")
    assert "holds no comparison" in refused(capsys, "compare", tmp_path)
    assert "Give the folder of one run" in refused(capsys, tmp_path, tmp_path)


def test_an_unknown_part(trained, capsys):
    text = refused(capsys, trained, "--what", "sharpness,hesian")
    assert 'There is no part "hesian". Did you mean hessian?' in text
    assert "names no part" in refused(capsys, trained, "--what", ",")
    assert "Leave it out" in refused(capsys, "compare", trained, "--what", "hessian")


def test_too_few_samples(trained, capsys):
    assert "--samples is 5" in refused(capsys, trained, "--samples", 5)


def test_a_device_that_is_not_there(trained, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "torch sees no CUDA device here" in refused(capsys, trained, "--device", "cuda")
    assert 'device is "gpu", which is unknown' in refused(capsys, trained, "--device", "gpu")


def test_a_run_without_any_checkpoint(copied, capsys):
    for path in copied.glob("*.pt"):
        path.unlink()
    assert "has no checkpoint" in refused(capsys, copied)


def pretending(folder, **settings):
    """The folder of a run with these settings that nobody has trained."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "checkpoint-00001.pt").write_bytes(b"")
    return folder


@pytest.mark.nightly
def test_a_pose_problem(tmp_path, capsys):
    folder = pretending(tmp_path / "run", data="stick-figures", model="hrnet-w16-small", train_size=8, test_size=8)
    assert "ausam diagnose supports only classification" in refused(capsys, folder)


def test_a_quantised_network(tmp_path, capsys):
    assert "is a staircase" in refused(capsys, pretending(tmp_path / "run", quantize=4))


def test_a_damaged_snapshot(copied, capsys):
    for path in copied.glob("*-00004.pt"):
        path.write_bytes(b"nothing")
    assert run("diagnose", copied, "--what", "hessian") == 2
    assert "00004.pt" in capsys.readouterr().err


# -- small things ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [10, 10_000, 1_000_000])
def test_gradients_of_samples_are_taken_in_chunks_that_fit(trained, width):
    subject = replace(open_run(trained, SAMPLES), model=torch.nn.Linear(width, 100, device="meta"))
    assert subject.chunk == 1 or subject.chunk * subject.parameters <= ROOM
    assert 1 <= subject.chunk <= 32


def test_spread_has_both_ends():
    assert spread(list(range(31)), 4) == [0, 10, 20, 30]
    assert spread([1, 2], 4) == [1, 2]
    for n in range(2, 60):
        chosen = spread(list(range(n)), 12)
        assert chosen[0] == 0
        assert chosen[-1] == n - 1
        assert len(set(chosen)) == min(n, 12)


@pytest.mark.parametrize(
    ("method", "radius"), [("sam", 0.2), ("asam", 0.02), ("rst", 0.2), ("plain", 0.2), ("gsam(rho=0.3)", 0.3)]
)
def test_the_radius_is_on_the_scale_of_sam(method, radius):
    config = resolve(method=method)
    assert radius_of(config, method_and_policy(config, steps=10)[0])[0] == pytest.approx(radius)
