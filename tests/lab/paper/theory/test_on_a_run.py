"""ausam diagnose RUN --theory: the figures are those of the saved weights, on a page of its own."""

import shutil

import pytest
import torch
import torch.nn.functional as F

from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments.diagnose.subject import open_run
from ausam_lab.paper.theory.on_a_run import MEASUREMENTS, diagnose_theory, policies_of, shuffled_batches
from ausam_lab.paper.theory.page import SECTIONS, Lemma1At, Theory
from ausam_lab.records import store
from ausam_lab.report.pages.sections import VERSION
from ausam_lab.training import snapshots
from ausam_lab.training.loop import train
from tests.lab.helpers import run

SMALL = {"train_size": 200, "test_size": 100, "batch_size": 32, "threads": 1}
SAMPLES = 64


def quiet(name, total):
    pass


@pytest.fixture(scope="module")
def trained(four_epochs, tmp_path_factory):
    """An AUSAM run of four epochs that keeps them all."""
    return shutil.copytree(four_epochs, tmp_path_factory.mktemp("theory") / "run")


@pytest.fixture(scope="module")
def tested(trained):
    """The same with its theory, and one part of its diagnosis."""
    assert run("diagnose", trained, "--samples", SAMPLES, "--what", "geometry", "--theory") == 0
    return trained


@pytest.fixture
def copied(trained, tmp_path):
    """The run without anything measured."""
    out = tmp_path / "run"
    shutil.copytree(trained, out, ignore=shutil.ignore_patterns("diagnosis*", "theory*"))
    return out


def theory_in(folder):
    return store.read(folder / "theory.json", Theory)


def test_every_measurement_has_a_section():
    assert list(MEASUREMENTS) == list(SECTIONS)


def test_everything_is_measured_and_has_a_sentence(tested):
    theory = theory_in(tested)
    assert theory.not_measured == ()
    assert list(dict.fromkeys(f.part for f in theory.findings)) == list(SECTIONS)
    assert [row.epoch for row in theory.lemma1.rows] == [0, 1, 2, 3, 4]
    assert [row.epoch for row in theory.theorem4.rows] == [1, 2, 3, 4]


def test_it_has_a_page_of_its_own(tested):
    page = (tested / "theory.html").read_text()
    assert "claims that can be tested hold here" in page
    assert "does not hold here" in page
    assert "Theorem" not in (tested / "diagnosis.html").read_text()


@pytest.mark.nightly
def test_it_is_measured_on_request_alone(copied):
    assert run("diagnose", copied, "--samples", SAMPLES, "--what", "selection") == 0
    assert not (copied / "theory.html").exists()
    assert run("diagnose", copied, "--samples", SAMPLES, "--what", "theorem3") == 0
    assert theory_in(copied).theorem3 is not None
    assert theory_in(copied).lemma1 is None


def test_lemma1_is_a_slow_loop_over_samples(tested):
    """Epoch 3 by hand: gradients one by one, the mini-batches as they were dealt."""
    subject = open_run(tested, SAMPLES)
    piece = next(tested.glob("diagnosis/lemma1-00003-*.json"))
    lemma = store.read_as(piece, "lemma1-00003", VERSION, Lemma1At)
    subject.at(3)
    model = subject.model.eval()
    weights = list(model.parameters())

    def gradient(x, y):
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), weights)
        return torch.cat([g.flatten() for g in grads])

    for rows in shuffled_batches(subject, 3):
        x, y = subject.x[rows], subject.y[rows]
        g = gradient(x, y)
        e = 0.2 * g / g.norm()
        with torch.no_grad():
            here = F.cross_entropy(model(x), y, reduction="none")
            at = 0
            for w in weights:
                w += e[at : at + w.numel()].view(w.shape)
                at += w.numel()
            there = F.cross_entropy(model(x), y, reduction="none")
        subject.at(3)
        for i, row in enumerate(rows.tolist()):
            own = gradient(x[i : i + 1], y[i : i + 1])
            assert lemma.norms[row] == pytest.approx(float(own.norm()), rel=1e-3, abs=1e-6)
            assert lemma.dlp[row] == pytest.approx(float((there[i] - here[i]).abs()) / 0.2, rel=1e-2, abs=1e-4)


def test_the_scores_of_the_run_are_what_its_policy_would_choose_by(trained):
    subject = open_run(trained, SAMPLES)
    subject.at(3)
    policies = policies_of(subject, 3)
    columns = {s.epoch: s for s in snapshots.available(trained)}[3].load()["sampler"]["scores"]
    mean = (columns["sum"] / columns["count"])[subject.index]
    assert torch.allclose(policies["AUSampling"][1].mean, mean, equal_nan=True)
    with torch.no_grad():
        loss = F.cross_entropy(subject.model.eval()(subject.x), subject.y, reduction="none")
    assert torch.allclose(policies["TopLoss"][1].last, loss, atol=1e-5)


@pytest.mark.nightly
def test_a_run_that_does_not_rank_by_sharpness_is_measured_too(tmp_path):
    out = tmp_path / "run"
    for _ in train(resolve(method="plain", epochs=2, every=1, **SMALL), out):
        pass
    theory = diagnose_theory(out, ["lemma1", "theorem1"], SAMPLES, "", quiet)
    assert theory.lemma1.rows[-1].table is None
    assert theory.lemma1.rows[-1].average is not None


def test_the_scores_of_progress_are_those_of_the_run(tmp_path):
    out = tmp_path / "run"
    config = resolve(method="plain", policy="ausampling(score=progress)", ramp=0, epochs=3, every=1, **SMALL)
    for _ in train(config, out):
        pass
    subject = open_run(out, SAMPLES)
    subject.at(3)
    own = subject.scores(3).of(subject.index)
    assert torch.allclose(policies_of(subject, 3)["AUSampling"][1].mean, own, equal_nan=True)


@pytest.mark.nightly
def test_without_earlier_epochs_the_rest_is_measured_and_the_page_says_so(copied, capsys):
    for path in copied.glob("snapshot-*.pt"):
        path.unlink()
    theory = diagnose_theory(copied, None, SAMPLES, "", quiet)
    assert [x.part for x in theory.not_measured] == ["theorem2"]
    assert theory.theorem2 is None
    assert "Not measured" in (copied / "theory.html").read_text()
    assert run("diagnose", copied, "--samples", SAMPLES, "--what", "theorem2") == 2
    assert "has kept only epochs 3 and 4. Train with --every N" in capsys.readouterr().err
