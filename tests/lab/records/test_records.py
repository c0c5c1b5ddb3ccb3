"""Records survive their files, and nothing else does."""

import json
import math
import os
from pathlib import Path

import pytest

from ausam_lab.config import Config
from ausam_lab.paper.reproduce import Reproduction
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.run import Epoch, Run, Score, epochs_of, epochs_text
from ausam_lab.training import run_folder
from tests.lab.helpers import a_comparison, a_run, named, read, rewrite


def a_table():
    return Reproduction("table1", "small", 2, "ausam reproduce table1 --scale small")


EVERY = [
    a_run(config=Config(rho=0.1, augment="cutout"), init_sha256="1" * 64, parts={"head": 7.5}),
    a_comparison(named("sam", 90.0, 91.5, curve=[50, 90]) + named("sgd", 80.0, 82.0)),
    a_table(),
]


@pytest.mark.parametrize("record", EVERY, ids=lambda r: type(r).__name__)
def test_a_record_is_what_its_file_holds(record, tmp_path):
    path = tmp_path / "file.json"
    store.write(path, record)
    assert store.read(path, type(record)) == record
    assert store.format_of(path) == record.FORMAT
    assert read(path)["version"] == record.VERSION


def test_a_file_that_is_not_there_holds_nothing_and_one_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "file.json"
    assert store.read(path, Run) is None
    with pytest.raises(ValueError, match="There is no file"):
        store.read_finished(path, Run)
    for text in ("", "{", "[1]", "\0", "[" * 100_000):
        path.write_text(text)
        assert store.format_of(path) == ""
        with pytest.raises(ValueError, match=r"file.json is not a JSON object\. Remove it"):
            store.read(path, Run)


CHANGES = [
    ({"seed": -1}, "seed is -1"),
    ({"seed": 1.5}, "int.* `seed"),
    ({"test": {"value": math.nan}}, "value is nan.* `test"),
    ({"test": {}}, "`value`.* `test"),
    ({"data": None}, "`data"),
    ({"colour": "red"}, "colour is not known"),
    ({"config": {"lr": -1}}, "lr is -1.*`config"),
]


@pytest.mark.parametrize(("changes", "message"), CHANGES, ids=[m for _, m in CHANGES])
def test_what_does_not_fit_is_refused_with_its_place(changes, message, tmp_path):
    path = tmp_path / "file.json"
    store.write(path, a_run())
    rewrite(path, **changes)
    with pytest.raises(ValueError, match=rf"file.json is not in ausam's format: .*{message}.*Remove it"):
        store.read(path, Run)


def test_what_is_no_regular_file_is_written_in_place(tmp_path):
    """It once was replaced: --export /dev/null took the device from the whole machine."""
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    files.write(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"
    files.write(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_or_kind_is_refused(version, tmp_path):
    path = tmp_path / "file.json"
    store.write(path, a_run())
    rewrite(path, version=version)
    with pytest.raises(ValueError, match="but should be a run of version 1"):
        store.read(path, Run)
    store.write(path, a_table())
    with pytest.raises(ValueError, match="contains table, version 3, but should be a comparison of version 1"):
        store.read(path, Comparison)


def test_a_setting_that_came_later_has_its_default(tmp_path):
    path = tmp_path / "file.json"
    store.write(path, a_run(config=Config(lr=0.3)))
    content = read(path)
    del content["config"]["label_smoothing"]
    rewrite(path, config=content["config"])
    assert store.read(path, Run).config == Config(lr=0.3)


def an_epoch(i, loss=1.0):
    return Epoch(i, 0.1, loss, Score(50.0), 1.0, 10, 20, 20, 10.0, 0, 1)


def test_epochs_go_a_line_each(tmp_path):
    text = epochs_text([an_epoch(1), an_epoch(2, math.nan), an_epoch(3)])
    epochs = epochs_of(text)
    assert [e.epoch for e in epochs] == [1, 2, 3]
    assert math.isnan(epochs[1].train_loss)
    lines = text.splitlines()
    bad = (lines[1][:-9], "{}", "3", json.dumps({**json.loads(lines[1]), "epoch": 0}), "[" * 100_000)
    for line in bad:
        (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], line, lines[2]]))
        with pytest.raises(ValueError, match=r"metrics.jsonl is not readable: .*Remove it and result.json"):
            run_folder.epochs(tmp_path)
