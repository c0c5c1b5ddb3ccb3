"""What reaches the terminal."""

import os
import subprocess
import sys

import pytest

from ausam_lab.cli import terminal
from ausam_lab.report import summary
from tests.lab.helpers import a_comparison, named


def test_control_characters_of_a_file_do_not_reach_the_terminal(capsys):
    evil = "SAM\x1b]0;owned\x07\x1b[2J"
    terminal.write(summary.text(a_comparison([*named("sam", 90.0, 91.0), *named("sgd", 80.0, 82.0)], {"sam": evil})))
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\x07" not in out + err
    assert "]0;owned" in out  # the text itself is shown


@pytest.mark.parametrize("bold", [True, False])
def test_a_terminal_shows_the_best_row_in_bold(bold, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: bold)
    terminal.write(summary.text(a_comparison([*named("sam", 90.0, 91.0), *named("sgd", 80.0, 82.0)])))
    strong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("\x1b[1m")]
    assert [line.split()[0] for line in strong] == ["\x1b[1msam"] * bold


def test_lines_and_tabs_stay():
    assert terminal.harmless("a\tb\r\nc\u00a0d\x1b[2m\x9b") == "a\tb \nc\u00a0d [2m "


def test_without_a_terminal_progress_is_a_line_a_minute_with_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    with terminal.Progress("it") as progress:
        progress.begin(10, 40)
        for i in range(10):  # a quarter of a minute each
            now[0] += 15.0
            progress.advance(f"epoch {i}")
    assert capsys.readouterr().err.splitlines() == [
        "epoch 4; 38 % done, about 6.2 min left",
        "epoch 9; 50 % done, about 5.0 min left",
    ]


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_leaves_ends_the_command_without_a_word(tmp_path, buffered):
    """``ausam ... | head``: no traceback, and the exit code of a program that such a pipe ends."""
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "-m", "ausam", "list"]
    done = subprocess.run(command, cwd=tmp_path, env=env, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 141
    assert "Error" not in done.stderr
