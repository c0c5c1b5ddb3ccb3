"""Locks of files: who waits says for what."""

import logging

import pytest
from filelock import FileLock

from ausam_lab.records import files


def test_a_long_wait_says_what_it_waits_for(tmp_path, monkeypatch, caplog):
    held = FileLock(tmp_path / "x.lock")
    held.acquire()
    monkeypatch.setattr(files, "PATIENCE", 0.05)

    class Release(logging.Handler):  # what the other process does, once the message is there
        def emit(self, record):
            held.release()

    handler = Release()
    logging.getLogger("ausam").addHandler(handler)
    try:
        with caplog.at_level(logging.WARNING), files.file_lock(tmp_path / "x.lock", wait=True) as mine:
            assert mine
    finally:
        logging.getLogger("ausam").removeHandler(handler)
    assert "x.lock" in caplog.text
    assert "remove it" in caplog.text


@pytest.mark.parametrize("wait", [False, True])
def test_a_free_lock_says_nothing(tmp_path, caplog, wait):
    with files.file_lock(tmp_path / "x.lock", wait) as mine:
        assert mine
    assert caplog.text == ""


def test_a_held_lock_is_left_at_once(tmp_path):
    with FileLock(tmp_path / "x.lock"), files.file_lock(tmp_path / "x.lock") as mine:
        assert not mine
