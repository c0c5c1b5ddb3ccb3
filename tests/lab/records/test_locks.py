"""Locks of files: who waits says for what."""

import pytest
from filelock import FileLock

from ausam_lab.records import files


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    waiting = files.file_lock(tmp_path / "x.lock", wait=True)
    with FileLock(tmp_path / "x.lock"), pytest.raises(files.WriteError, match=r"x\.lock.*remove it"):
        waiting.__enter__()


@pytest.mark.parametrize("wait", [False, True])
def test_a_free_lock_is_held(tmp_path, wait):
    with files.file_lock(tmp_path / "x.lock", wait) as mine:
        assert mine


def test_a_held_lock_is_left_at_once(tmp_path):
    with FileLock(tmp_path / "x.lock"), files.file_lock(tmp_path / "x.lock") as mine:
        assert not mine
