"""Unknown flags and wrong values: one line with the remedy, and nothing is guessed."""

import pytest

from ausam_lab.cli.main import COMMANDS
from tests.lab.helpers import parsed, run

SET_BY_NAME = "the names of the pairs set it, e.g. ausam-0.5 for SAM with AUSampling. Leave it out."


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--batchsize", "32"], "There is no flag --batchsize. Did you mean --batch-size?"),
        (["train", "--batch_size=32"], "There is no flag --batch_size. Did you mean --batch-size?"),
        (["train", "--quux", "1"], "There is no flag --quux."),
        (["train", "--batch", "32"], "There is no flag --batch. Did you mean --batch-size?"),  # no abbreviations
        (["reproduce", "table1", "--seed", "2"], "There is no flag --seed. Did you mean --seeds?"),
        (["list", "--learning-rate"], "There is no flag --learning-rate."),
        (["train", "sgd", "sam"], "sam: too many arguments."),
        (["compare", "sam", "--alpha", "0.5"], f"--alpha: {SET_BY_NAME}"),
        (["compare", "sam", "--method=gsam"], f"--method: {SET_BY_NAME}"),
        (["compare", "sam", "--policy", "random"], f"--policy: {SET_BY_NAME}"),
        (["compare", "sam", "--seeds", "0"], "argument --seeds: 0 is too few, give at least 1."),
        (["train", "--epochs", "many"], "argument --epochs: invalid int value: 'many'."),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_one_line_and_the_way_to_the_help(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        run(*argv)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"ausam: {message} See ausam {argv[0]} --help.\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["compare", "sgd", "--epochs", "5", "sam", "--all"], "names", ["sgd", "sam"]),
        (["compare", "--epochs", "5", "sgd", "sam"], "names", ["sgd", "sam"]),
        (["compare", "--all"], "names", []),
        (["diagnose", "compare", "--samples", "64", "runs/demo"], "place", ["compare", "runs/demo"]),
        (["reproduce", "--dry-run", "table1"], "table", "table1"),
        (["train", "--epochs", "5", "ausam-0.5"], "name", "ausam-0.5"),
        (["train", "--epochs", "5"], "name", None),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_flags_may_stand_anywhere(argv, name, value):
    assert getattr(parsed(*argv), name) == value


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]], ids=str)
def test_the_overview_names_every_command(capsys, argv):
    assert run(*argv) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_command(capsys):
    assert run("compair") == 2
    assert "Did you mean compare?" in capsys.readouterr().err


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "selftest"])
def test_help_shows_the_basics_and_help_all_everything(command, capsys):
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as left:
            run(command, flag)
        assert left.value.code == 0
        texts.append(capsys.readouterr().out)
    short, whole = texts
    assert "None" not in whole
    assert f"\n  ausam {command}" in short  # an example
    if command in ("train", "compare", "tune"):
        assert "--label-noise" in short
        assert "--memory-format" not in short
        assert "--memory-format" in whole
