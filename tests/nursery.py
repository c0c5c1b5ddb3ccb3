"""A process that has imported torch and trains nothing itself: it forks commands, which start at once, and stops them.

Threads do not survive a fork, and pytest's process has some; so this is a process of its own, started by the tests.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ausam_lab.cli import commands
from ausam_lab.cli.main import main
from ausam_lab.data.catalogue import problem, resolve
from ausam_lab.experiments import compare, run_cells
from ausam_lab.paper import recipe
from ausam_lab.records import files
from ausam_lab.records.run import read_epochs
from ausam_lab.training import loop as training
from ausam_lab.training.checkpoint import NAME

RNG = random.Random(11)
SMALL = ["--train-size", "192", "--test-size", "100", "--threads", "1"]


@dataclass(frozen=True)
class Scale:
    """How many kills: of a run after a step, in a checkpoint, in metrics.jsonl; of a table in a write, after a step."""

    epochs: int
    steps: int
    checkpoints: int
    metrics: int
    writes: int
    table_steps: int

    def run(self, out):
        """A command line that begins the run, or goes on with it."""
        line = ["train", "--method", "looksam(k=3)", "--policy", "ausampling", "--ramp", "4", "--epochs"]
        return [*line, str(self.epochs), *SMALL, "--resume", "--out", str(out)]


# A kill after a step comes 4 epochs later at the latest, a signal 4: what is left of the run must suffice for all.
SCALES = {
    "few": Scale(epochs=18, steps=2, checkpoints=2, metrics=0, writes=0, table_steps=0),
    "many": Scale(epochs=120, steps=33, checkpoints=24, metrics=6, writes=20, table_steps=11),
}


def life(argv, *, step=0, write=("", 0), signals=(signal.SIGKILL,), room=None, linger=False):
    """Fork the command and stop it; its exit code, negative for the signal that killed it, and what it said.

    ``step``: somewhere after so many steps. ``write``: in the middle of the n-th write of a file with this in its name.
    ``room``: no signal, but files can have only so many bytes from that step on. ``linger``: it ends slowly.
    """
    told, tell = os.pipe()
    said, say = os.pipe()
    if (child := os.fork()) == 0:
        _patch(tell, step, *write, room, linger)
        os.dup2(say, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = main(argv)
        sys.stderr.flush()
        os._exit(code)
    os.close(tell)
    os.close(say)
    for number in signals:
        if os.read(told, 1):  # nothing if it ended by itself
            time.sleep(RNG.uniform(0, 0.03) if step else 0)
            os.kill(child, number)
    with open(said) as err:
        text = err.read()
    os.close(told)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def _patch(tell, step, name, count, room, linger):
    """Tell the parent when the moment has come; inside a write, wait there for the end."""
    part = RNG.random()
    left = {"steps": step, "writes": count}

    def put(file, data):
        left["writes"] -= name in os.path.basename(file.name)
        if left["writes"] == 0:
            file.write(data[: int(part * len(data))])
            file.flush()
            os.write(tell, b"!")
            while True:
                time.sleep(0.05)
        original(file, data)

    def on_step(row):
        left["steps"] -= 1
        if left["steps"] == 0 and room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        elif left["steps"] == 0:
            os.write(tell, b"!")
        while room is None and step and left["steps"] <= -6:  # the parent is late: wait here for its signal
            time.sleep(0.05)

    def counted(config, out, **how):
        try:
            yield from train(config, out, **{**how, "on_step": on_step})
        finally:
            if linger:
                os.write(tell, b"!")
                time.sleep(3600)

    original, files._put = files._put, put
    train = training.train
    commands.train = compare.train = run_cells.train = counted


def killed(out, scale):
    """Kills of one run, over its epochs; then it may end."""
    moments = [{"step": RNG.randint(1, 6)} for _ in range(scale.steps)]
    moments += [{"write": ("checkpoint-", RNG.randint(1, 2))} for _ in range(scale.checkpoints)]
    moments += [{"write": ("metrics.jsonl", 2 + i % 2)} for i in range(scale.metrics)]
    RNG.shuffle(moments)
    moments = [{"write": ("config.json", 1)}, *moments, {"write": ("result.json", 1)}]
    lives = []
    for moment in moments:
        code, _ = life(scale.run(out), **moment)
        for path in out.glob("checkpoint-*.pt"):
            torch.load(path, weights_only=True)
        temporary = [p.name for p in out.glob(".*.tmp")]
        epochs = len(read_epochs(out / "metrics.jsonl"))
        lives.append({"code": code, "at": moment.get("write", ["step"])[0], "epochs": epochs, "temporary": temporary})
    lives.append({"code": life(scale.run(out))[0]})
    return lives


def stopped(out, scale):
    """Ctrl-C, SIGTERM, two Ctrl-C, and files that may not grow: exit codes and what is said; then it may end."""
    moments = [
        {"step": 4, "signals": [signal.SIGINT]},
        {"step": 4, "signals": [signal.SIGTERM]},
        {"step": 4, "signals": [signal.SIGINT, signal.SIGINT], "linger": True},
        {"write": ("checkpoint-", 2), "signals": [signal.SIGINT]},
        {"step": 4, "signals": [], "room": 50_000},
        {"signals": []},
    ]
    lives = []
    for moment in moments:
        code, said = life(scale.run(out), **moment)
        epochs = max((int(NAME.fullmatch(p.name)[1]) for p in out.glob("checkpoint-*.pt")), default=0)
        said = [line for line in said.splitlines() if line.startswith("ausam: ")]
        lives.append({"code": code, "epochs": epochs, "said": said, "temporary": len(list(out.glob(".*.tmp")))})
    return lives


def tables(out, scale):
    """Kills of ausam reproduce and of ausam compare, in the middle of any write and after a step; then they may end."""
    recipe.FOLDER = out
    commands = {
        "reproduce": ["reproduce", "micro", "--seeds", "1", "--threads", "1", "--out"],
        "compare": ["compare", "sgd", "ausam-0.5", "--epochs", "2", "--seeds", "1", *SMALL, "--out"],
    }
    codes = {}
    for name, argv in commands.items():
        assert life([*argv, str(out / name / "calm")], signals=[])[0] == 0
        moments = [{"write": ("", RNG.randint(1, 8 if i < 10 else 3))} for i in range(scale.writes)]
        moments += [{"step": RNG.randint(1, 3)} for _ in range(scale.table_steps)]
        RNG.shuffle(moments)
        codes[name], place = [], out / name / "killed"
        for moment in moments:
            while (code := life([*argv, str(place)], **moment)[0]) == 0:  # it had too little left: begin another
                codes[name].append(code)
                place.rename(out / name / f"ended-{len(codes[name])}")
            codes[name].append(code)
        codes[name].append(life([*argv, str(place)], signals=[])[0])
    return codes


def warm():
    """Have all that a first step imports, and the data."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.SGD([weight], lr=0.1).step()
    problem(resolve(train_size=192, test_size=100))
    # pyarrow, which comes with pandas, has a thread of its allocator's, which that one starts again after a fork
    threads = [Path(f"/proc/self/task/{t}/comm").read_text().strip() for t in os.listdir("/proc/self/task")]
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1, "a fork would lose a thread"


if __name__ == "__main__":
    warm()
    base, scale = Path(sys.argv[1]), SCALES[sys.argv[2]]
    report = {"calm": life(scale.run(base / "calm"), signals=[])[0], "killed": killed(base / "killed", scale)}
    report |= {"stopped": stopped(base / "stopped", scale), "tables": tables(base, scale) if scale.writes else {}}
    sys.stdout.write(json.dumps(report))
