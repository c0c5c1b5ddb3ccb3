"""The search for settings: what is trained, kept and refused, and that no test sample is looked at."""

import html
import re
import shlex
import statistics
from dataclasses import asdict

import optuna
import pytest
import torch

from ausam_lab.cli import settings
from ausam_lab.cli.main import main
from ausam_lab.data import catalogue, images
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments import tune
from tests.lab.helpers import parsed, read

SMALL = ["--model", "mlp", "--train-size", "160", "--threads", "1", "--seeds", "2", "--epochs", "4"]
SEARCH = ["tune", *SMALL, "--over", "rho=0,0.1,0.4", "--over", "batch-size=32,64"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    out = tmp_path_factory.mktemp("tune")
    assert main([*SEARCH, "--out", str(out)]) == 0
    return out


def figures(out):
    """The scores of all trials, by their settings."""
    return {(*t.params.values(),): t.intermediate_values for t in tune.ended(tune.load(out))}


def test_every_combination_is_trained_with_every_seed_and_scored_on_held_out_samples(searched):
    study = tune.load(searched)
    assert len(study.trials) == 6
    best = [t for t in tune.ended(study) if t.state.name == "COMPLETE"]
    assert len(best) >= 3  # nothing is stopped before three trials have ended
    assert [t.value for t in best] == sorted((t.value for t in best), reverse=True)
    for trial in best:
        folder = searched / "runs" / ",".join(f"{name}={value:g}" for name, value in trial.params.items())
        runs = [read(folder / f"seed-{seed}" / "result.json") for seed in (0, 1)]
        assert trial.value == pytest.approx(statistics.fmean(r["test"]["value"] for r in runs))
        assert {r["test"]["name"] for r in runs} == {"validation accuracy"}
        assert runs[0]["config"]["rho"] == trial.params["rho"]
        assert runs[0]["config"]["batch_size"] == trial.params["batch_size"]
        # 20 % of every class are held out before anything else
        assert (runs[0]["data"]["train"], runs[0]["data"]["test"]) == (160, 201)


def test_a_trial_behind_the_median_is_stopped_after_half_of_the_epochs(searched):
    for trial in tune.load(searched).trials:
        epochs = len(trial.intermediate_values)
        assert epochs == 4 if trial.state.name == "COMPLETE" else 2 <= epochs < 4


def test_no_test_sample_is_looked_at(tmp_path, monkeypatch):
    """Test samples that cannot be read change nothing."""
    plain = images.ImageSet.prepare

    def spoilt(self, wanted):
        poisoned = self.changed(test_x=torch.full_like(self.test_x, 255), test_y=self.test_y.flip(0))
        return plain(poisoned, wanted)

    args = ["tune", *SMALL, "--over", "rho=0.1,0.4", "--epochs", "2"]
    assert main([*args, "--out", str(tmp_path / "one")]) == 0
    monkeypatch.setattr(images.ImageSet, "prepare", spoilt)
    catalogue._read.cache_clear()
    assert main([*args, "--out", str(tmp_path / "two")]) == 0
    catalogue._read.cache_clear()
    assert figures(tmp_path / "one") == figures(tmp_path / "two")


@pytest.mark.parametrize("after", [1, 13])
def test_a_search_that_was_killed_is_resumed(searched, tmp_path, monkeypatch, after):
    """It ends as an uninterrupted one, and trains no finished trial again."""
    original, epochs = tune.train, 0

    def interrupted(*args, **settings):
        nonlocal epochs
        training = original(*args, **settings)
        while True:
            try:
                row = next(training)
            except StopIteration as end:
                return end.value
            epochs += 1
            if epochs == after:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(tune, "train", interrupted)
    assert main([*SEARCH, "--out", str(tmp_path)]) == 130
    monkeypatch.setattr(tune, "train", original)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert main([*SEARCH, "--out", str(tmp_path)]) == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert figures(tmp_path) == figures(searched)


def test_a_trial_that_waited_when_the_search_was_killed_is_the_next(tmp_path, monkeypatch):
    ran, enqueue = [], optuna.Study.enqueue_trial

    def killed(study, settings):
        enqueue(study, settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(
        tune, "_train", lambda trial, *_: ran.append(tune._called(trial.params)) or trial.report(0, 1) or 1.0
    )
    with monkeypatch.context() as during:
        during.setattr(optuna.Study, "enqueue_trial", killed)
        assert main([*SEARCH, "--out", str(tmp_path)]) == 130
    assert main(["report", str(tmp_path)]) == 2  # nothing to report yet
    assert main([*SEARCH, "--out", str(tmp_path)]) == 0
    assert len(ran) == len(set(ran)) == 6


def test_without_values_rho_and_alpha_are_searched():
    assert tune.values([], resolve(policy="AUSampling", rho=0.2)) == {"rho": [0.1, 0.2, 0.4], "alpha": [0.25, 0.5]}
    assert tune.values([], resolve(rho=0.2)) == {"rho": [0.1, 0.2, 0.4]}
    with pytest.raises(ValueError, match="--over"):
        tune.values([], resolve(method="Plain"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--over", "rhoo=0.1"], "Did you mean rho"),
        (["--over", "model=1"], "model is 1"),
        (["--over", "epochs=10,20"], "a numeric setting"),
        (["--over", "rho"], "rho=0.1,0.2"),
        (["--over", "batch_size=1.5"], "batch_size is 1.5"),
        (["--over", "rho=0.1", "--rho", "0.2"], "Leave out --rho"),
        (["--rho", "0.2"], "the search tries 0.1, 0.2, 0.4."),
        (["--over", "rho=-1"], "rho is -1.0"),
        (["--over", "alpha=0.5", "--policy", "full"], "--alpha"),
        (["--over", "rho=0.1", "--validation", "0"], "--validation 0.2"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(tmp_path, capsys, args, message):
    assert main(["tune", *args, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [["--lr", "0.5"], ["--seeds", "3"], ["--over", "rho=0.8"]])
def test_another_search_in_the_folder_is_refused(searched, capsys, flags):
    assert main([*SEARCH, *flags, "--out", str(searched)]) == 2
    assert "another --out" in capsys.readouterr().err


def test_the_command_of_the_best_settings_can_be_pasted(tmp_path, capsys):
    """It trains with everything that the search was given, on all training samples, in a folder of its own."""
    given = ["--method", "RST(p=0.5)", "--train-size", "160", "--threads", "1", "--epochs", "1", "--seed", "3"]
    given += ["--replay", "--lr", "0.05", "--model", "mlp"]
    over = ["--over", "rho=0.25,1", "--over", "alpha=0.30000000000000004", "--over", "batch-size=64"]
    out = tmp_path / "a search"
    assert main(["tune", *given, *over, "--seeds", "1", "--out", str(out)]) == 0
    study = tune.load(out)
    line = tune.best_command(study, out)
    args = parsed("train", *shlex.split(line)[2:])
    assert args.out == str(out / "best")
    told = {"method": "RST(p=0.5)", "policy": "AUSampling", "model": "mlp", "train_size": 160, "epochs": 1, "seed": 3}
    told |= {"replay": True, "lr": 0.05, "rho": study.best_params["rho"], "alpha": 0.1 + 0.2, "validation": 0.0}
    assert vars(resolve(**settings.given(args))).items() >= told.items()
    assert main(shlex.split(line)[1:]) == 0


@pytest.mark.parametrize("unfitted", [False, True])
def test_the_report_has_every_trial_and_the_command_unless_nothing_was_fitted(tmp_path, capsys, unfitted):
    def made(rho, scores, state, **attributes):
        return optuna.trial.create_trial(
            state=state,
            value=scores[-1] if attributes else None,
            params={"rho": rho},
            distributions={"rho": optuna.distributions.CategoricalDistribution((0.1, 0.3, 0.4))},
            intermediate_values=dict(enumerate(scores, start=1)),
            user_attrs=attributes,
        )

    study = optuna.create_study(study_name="tuning", storage=f"sqlite:///{tmp_path / tune.DATABASE}")
    study.set_user_attr("settings", asdict(resolve(validation=0.2, epochs=2)) | {"seeds": [0]})
    states = optuna.trial.TrialState
    study.add_trial(made(0.4, [20.0], states.PRUNED))
    study.add_trial(made(0.1, [40.0, 80.0], states.COMPLETE, std=None, cost="2x", unfitted=unfitted))
    study.add_trial(made(0.3, [50.0, 90.0], states.COMPLETE, std=1.0, cost="2x", unfitted=True))
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines()[2:5]]
    assert rows == [["0.3", "2", "90.00", "±", "1.00", "2x"], ["0.1", "2", "80.00", "2x"], ["0.4", "1", "20.00", "–"]]
    command = f"ausam train --data digits --rho 0.3 --epochs 2 --out {shlex.quote(str(tmp_path / 'best'))}"
    page = re.sub("</?span>", "", (tmp_path / "tuning.html").read_text())  # a word of a command is not broken
    for told in (said, html.unescape(page)):
        assert (command in told, "Train longer" in told) == (not unfitted, unfitted)
    assert "Score against rho" in page


def test_the_page_has_every_trial_and_a_heat_map_of_two_settings(searched):
    page = (searched / "tuning.html").read_text()
    assert page.count('<tr><th scope="row">') == 6
    assert page.count('<figure class="chart square">') == 1
