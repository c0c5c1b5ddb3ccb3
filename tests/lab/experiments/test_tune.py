"""The search for settings: rounds, what is kept, what is refused, and that no test sample is looked at."""

import re
import shlex
import statistics
from dataclasses import replace

import pytest
import torch

from ausam_lab.cli import commands
from ausam_lab.cli.main import main
from ausam_lab.cli.parser import parser
from ausam_lab.data import catalogue, images
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments import run_cells, tune
from ausam_lab.records import store
from ausam_lab.records.tuning import Tuning
from ausam_lab.report.pages import tuning
from ausam_lab.report.pages.tuning import train_command
from ausam_lab.report.text import moment
from tests.lab.helpers import read

SMALL = ["--train-size", "160", "--threads", "1", "--seeds", "2", "--epochs", "9"]
SEARCH = ["tune", *SMALL, "--over", "rho=0,0.1,0.4", "--over", "batch-size=32,64"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    out = tmp_path_factory.mktemp("tune")
    assert main([*SEARCH, "--out", str(out)]) == 0
    return out


def test_rounds_grow_and_trials_shrink_by_three():
    assert tune.rounds(1, 30) == [(1, 30)]
    assert tune.rounds(2, 30) == [(2, 30)]
    assert tune.rounds(27, 200) == [(27, 7), (9, 22), (3, 67), (1, 200)]
    assert tune.rounds(27, 20) == [(27, 7), (9, 20)]  # no round is shorter than 3 epochs
    assert tune.rounds(27, 2) == [(27, 2)]


def test_the_best_third_goes_on(searched):
    tuning = store.read_finished(searched / "tuning.json", Tuning)
    assert [(r.epochs, len(r.trials)) for r in tuning.rounds] == [(3, 6), (9, 2)]
    for one in tuning.rounds:
        for trial in one.trials:
            name = f"rho={trial.settings['rho']:g},batch_size={trial.settings['batch_size']:g}"
            folder = searched / f"{one.epochs}-epochs" / "runs" / name
            runs = [read(folder / f"seed-{seed}" / "result.json") for seed in (0, 1)]
            assert trial.row.mean == pytest.approx(statistics.fmean(r["test"]["value"] for r in runs))
            assert {r["test"]["name"] for r in runs} == {"validation accuracy"}
            assert {r["config"]["validation"] for r in runs} == {0.2}
            assert runs[0]["config"]["rho"] == trial.settings["rho"]
            # 20 % of every class are held out before anything else
            assert (runs[0]["data"]["train"], runs[0]["data"]["test"]) == (160, 201)
        means = [trial.row.mean for trial in one.trials]
        assert means == sorted(means, reverse=True)
    first, second = tuning.rounds
    assert {t.row.name for t in second.trials} == {t.row.name for t in first.trials[:2]}


def test_no_test_sample_is_looked_at(tmp_path, monkeypatch, capsys):
    """Test samples that cannot be read change nothing."""
    plain = images.ImageSet.prepare

    def spoilt(self, wanted):
        poisoned = images.replace(self, test_x=torch.full_like(self.test_x, 255), test_y=self.test_y.flip(0))
        return plain(poisoned, wanted)

    args = ["tune", *SMALL, "--over", "rho=0.1,0.4", "--epochs", "2"]
    assert main([*args, "--out", str(tmp_path / "one")]) == 0
    monkeypatch.setattr(images.ImageSet, "prepare", spoilt)
    catalogue.forget()
    assert main([*args, "--out", str(tmp_path / "two")]) == 0
    catalogue.forget()
    one, two = (store.read_finished(tmp_path / name / "tuning.json", Tuning).rounds for name in ("one", "two"))
    assert [t.row.scores for t in one[0].trials] == [t.row.scores for t in two[0].trials]
    assert "No test sample was used." in capsys.readouterr().out


def test_the_table_names_the_best_and_has_every_trial_once(searched, capsys):
    assert main([*SEARCH, "--out", str(searched)]) == 0
    text = capsys.readouterr().out
    tuning = store.read_finished(searched / "tuning.json", Tuning)
    best = tuning.rounds[-1].trials[0]
    assert f"Best: --rho {best.settings['rho']:g} --batch-size {best.settings['batch_size']:g} (" in text
    flags = f"--rho {best.settings['rho']:g} --batch-size {best.settings['batch_size']:g}"
    given = "--train-size 160 --threads 1 --epochs 9"
    (line,) = [line for line in text.splitlines() if line.startswith("ausam train")]
    assert line.startswith(f"ausam train --method SAM --policy AUSampling {flags} --")
    assert set(line.split()) == set(f"ausam train --method SAM --policy AUSampling {flags} {given}".split())
    lines = [line.split() for line in text.splitlines()]
    rows = [line for line in lines if line and line[0].replace(".", "").isdigit()]
    assert sorted((line[0], line[1]) for line in rows) == sorted(
        (rho, size) for rho in ("0", "0.1", "0.4") for size in ("32", "64")
    )
    assert [line[2] for line in rows] == ["9", "9", "3", "3", "3", "3"]


@pytest.mark.nightly
def test_a_search_is_resumed(searched, tmp_path, monkeypatch, capsys):
    original, epochs = run_cells.train, 0

    def interrupted(*args, **settings):
        nonlocal epochs
        for row in original(*args, **settings):
            epochs += 1
            if epochs == 40:  # in the second round
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(run_cells, "train", interrupted)
    assert main([*SEARCH, "--out", str(tmp_path)]) == 130
    monkeypatch.setattr(run_cells, "train", original)
    before = set(tmp_path.rglob("result.json"))
    times = {path: path.stat().st_mtime_ns for path in before}
    assert main([*SEARCH, "--out", str(tmp_path)]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == times
    mine, theirs = (store.read_finished(out / "tuning.json", Tuning).rounds for out in (tmp_path, searched))
    assert [[t.row.scores for t in r.trials] for r in mine] == [[t.row.scores for t in r.trials] for r in theirs]


def test_a_trial_that_fails_is_last_and_the_search_goes_on(tmp_path, monkeypatch, capsys):
    original = run_cells.train

    def failing(config, *args, **settings):
        if config.rho == 0.1:
            raise RuntimeError("it burst")
        return original(config, *args, **settings)

    monkeypatch.setattr(run_cells, "train", failing)
    args = ["tune", *SMALL, "--epochs", "1", "--out", str(tmp_path), "--over"]
    assert main([*args, "rho=0.1,0.2"]) == 0
    said = capsys.readouterr()
    assert "rho=0.1/seed-0 failed: it burst" in said.err
    trials = store.read_finished(tmp_path / "tuning.json", Tuning).rounds[0].trials
    assert [(t.settings, t.failed) for t in trials] == [({"rho": 0.2}, ""), ({"rho": 0.1}, "it burst")]
    assert main([*args, "rho=0.1"]) == 2
    assert "Every trial failed. The last: it burst" in capsys.readouterr().err


def test_the_ramp_keeps_its_part_of_the_epochs():
    config = resolve(epochs=30, ramp=12)
    assert tune._shortened(config, {}, 10).ramp == 4
    assert tune._shortened(config, {"ramp": 6}, 10).ramp == 2
    assert tune._shortened(config, {}, 30) == config
    assert tune._shortened(resolve(epochs=30), {}, 10).ramp is None  # a fraction of the epochs by default
    assert tune._shortened(resolve(epochs=30, ramp=0.2), {}, 10).ramp == 0.2


def test_without_values_rho_and_alpha_are_searched():
    assert tune.values([], resolve(policy="AUSampling", rho=0.2)) == {"rho": [0.1, 0.2, 0.4], "alpha": [0.25, 0.5]}
    assert tune.values([], resolve(rho=0.2)) == {"rho": [0.1, 0.2, 0.4]}
    with pytest.raises(ValueError, match="have neither rho nor alpha"):
        tune.values([], resolve(method="Plain"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--over", "rhoo=0.1"], 'There is no number to search for "rhoo". Did you mean rho?'),
        (["--over", "model=1"], 'There is no number to search for "model"'),
        (["--over", "epochs=10,20"], 'There is no number to search for "epochs"'),
        (["--over", "rho"], '--over "rho": put numbers after the name, e.g. rho=1,2.'),
        (["--over", "batch_size=1.5"], "put whole numbers after the name"),
        (["--over", "rho=0.1", "--over", "rho=0.2"], "--over rho is given twice"),
        (
            ["--over", "rho=0.1", "--rho", "0.2"],
            "rho is one of the settings to search, so --rho has no effect. Leave it out.",
        ),
        (["--over", "rho=-1"], "rho is -1.0"),
        (["--over", "alpha=0.5", "--policy", "full"], "--alpha is 0.5, but Full takes none"),
        (["--over", "rho=0.1", "--validation", "0"], "a search needs held-out samples. Use --validation 0.2."),
        (["--seeds", "0"], "--seeds is 0"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(tmp_path, capsys, args, message):
    assert main(["tune", *args, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_search_in_the_folder_is_refused(searched, capsys):
    assert main([*SEARCH, "--lr", "0.5", "--out", str(searched)]) == 2
    assert "contains another search: lr 0.05 there, 0.5 here. Choose another --out." in capsys.readouterr().err


def test_the_line_of_the_best_settings_can_be_pasted(searched):
    """It parses to the same settings, whatever their kind, with all samples for training."""
    search = store.read_finished(searched / "tuning.json", Tuning)
    last = search.rounds[-1]
    trial = replace(last.trials[0], settings={"rho": 1.0, "alpha": 0.1 + 0.2, "batch_size": 64.0})
    command = (
        "ausam tune --over rho=1,2 --seeds=2 --validation 0.2 --seed 3 --replay --lr 0.05 --model 'my net.py:f' --out x"
    )
    config = replace(search.config, method="RST(p=0.5)", policy="AUSampling")
    search = replace(search, command=command, config=config, rounds=(replace(last, trials=(trial,)),))
    args = parser().parse_args(shlex.split(train_command(search))[1:])
    settings = commands._settings(args)
    assert settings == {
        "method": "RST(p=0.5)",
        "policy": "AUSampling",
        "replay": True,
        "lr": 0.05,
        "model": "my net.py:f",
        "rho": 1.0,
        "alpha": 0.1 + 0.2,
        "batch_size": 64,
    }


def test_the_page_has_the_table_the_charts_and_the_command(searched, capsys):
    page = (searched / "tuning.html").read_text()
    tuning = store.read_finished(searched / "tuning.json", Tuning)
    assert page.count('<tr><th scope="row">') == 6  # every trial once
    assert page.count('<figure class="chart">') == 2  # rho, and the batch size
    assert page.count("ausam tune") == 1
    assert train_command(tuning) in re.sub("</?span>", "", page)  # a word of a command is not broken
    assert page.index("ausam train") < page.index("<table")  # what to do next comes first
    assert moment(tuning.created) in page
    (searched / "tuning.html").unlink()
    assert main(["report", str(searched)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("tuning.html")
    assert (searched / "tuning.html").read_text() == page


def test_a_tie_is_told(searched):
    search = store.read_finished(searched / "tuning.json", Tuning)
    first, second = search.rounds[-1].trials
    apart = replace(second, row=replace(first.row, scores=tuple(s - 1 for s in first.row.scores)))
    for other, tied in ((replace(second, row=first.row), True), (apart, False)):
        text = tuning.text(
            replace(search, rounds=(*search.rounds[:-1], replace(search.rounds[-1], trials=(first, other))))
        )
        assert ("A tie with --rho" in text) is tied


@pytest.mark.parametrize(("values", "epochs", "said"), [("0,0.1,0.4", 2, True), ("0,0.1", 2, False)])
def test_why_there_is_one_round(tmp_path, capsys, values, epochs, said):
    flags = ["--train-size", "64", "--threads", "1", "--seeds", "1", "--epochs", str(epochs), "--over", f"rho={values}"]
    assert main(["tune", *flags, "--out", str(tmp_path)]) == 0
    assert ("One round: a round has at least 3 epochs" in capsys.readouterr().err) is said


def test_the_help_shows_the_policy_of_a_search(capsys):
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "full is no selection (default: AUSampling)" in text
