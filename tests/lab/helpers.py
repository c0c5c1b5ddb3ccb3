"""What several tests of the lab use: running a command, reading its files, and records made by hand."""

import json
from importlib import import_module
from pathlib import Path

from ausam_lab.cli import flags
from ausam_lab.cli.main import main
from ausam_lab.config import Config
from ausam_lab.data.catalogue import problem
from ausam_lab.records.comparison import Comparison, CurvePoint, NamedRun
from ausam_lab.records.run import Environment, Hardware, Run, Samples, Score
from ausam_lab.report import statistics

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


def run(*args: object) -> int:
    """The exit code of a command."""
    return main([str(a) for a in args])


def parsed(name: str, *argv: str):
    """The arguments of a command."""
    return flags.parse(name, import_module(f"ausam_lab.cli.{name}").COMMAND, argv)


def read(path: Path):
    """The content of a JSON file."""
    return json.loads(Path(path).read_text())


def rewrite(path: Path, **changes) -> None:
    """Change some entries of a JSON file."""
    path.write_text(json.dumps(read(path) | changes))


def load(name, data_dir="data", label_noise=0.0, **settings):
    """The data of this name, with these data settings of Config."""
    return problem(Config(data=name, data_dir=data_dir, label_noise=label_noise, **{"device": "cpu"} | settings))


def micro_recipe(*rows, train_size=192, test_size=100):
    """A table of the paper's with these rows, as the text of its recipe, that takes seconds."""
    return f"""
title = "Micro"
seeds = 1
settings = {{ data = "digits", epochs = 2, train_size = {train_size}, test_size = {test_size} }}
small = {{}}
[[block]]
name = "one"
column = "A"
settings = {{}}
small = {{}}
rows = [{", ".join(rows)}]
"""


def without_times(out):
    """The rows of a run's metrics, but times."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second", "cpu_seconds")} for row in rows]


HARDWARE = Hardware("a cpu", 2, 1, "cpu")
ENVIRONMENT = Environment(HARDWARE, {"torch": "2"}, "abc")


def a_run(score=90.0, seed=0, seconds=10.0, hardware=HARDWARE, metric="accuracy", parts=None, **changes):
    """The record of a run."""
    fields = {
        "method": "SAM(rho=0.1)",
        "policy": "Full()",
        "epochs": 3,
        "train": Score(99.0, metric),
        "samples_forward": 2000,
        "samples_backward": 2000,
        "skipped_steps": 0,
        "weights_sha256": "0" * 64,
        "init_sha256": None,
        "parameters": 5,
        "ranks": 1,
        "data": Samples(1000, 500, 10),
        "environment": Environment(hardware, ENVIRONMENT.versions, ENVIRONMENT.commit),
        "config": Config(),
    }
    return Run(test=Score(score, metric, parts=parts or {}), seed=seed, train_seconds=seconds, **fields | changes)


def a_comparison(runs, labels=None, **changes):
    """The record of a comparison of these named runs, rows computed."""
    names = list(dict.fromkeys(r.name for r in runs))
    fields = {
        "title": "digits",
        "command": "ausam compare",
        "created": "2025-01-01T00:00:00+00:00",
        "complete": True,
        "seeds": tuple(sorted({r.run.seed for r in runs})),
        "config": Config(),
        "rows": statistics.rows([(n, (labels or {}).get(n, n)) for n in names], runs),
        "runs": tuple(runs),
    }
    return Comparison(**fields | changes)


def named(name, *scores, curve=(), **changes):
    """Named runs with these scores, seeds from 0."""
    points = tuple(CurvePoint(i + 1, 1.0, float(s), float(i)) for i, s in enumerate(curve))
    return [NamedRun(name, a_run(score, seed, **changes), points) for seed, score in enumerate(scores)]


def pausing(module, name, epoch):
    """The command line as code for ``python -c``; the run in a folder of this name waits after that epoch."""
    return f"""
import sys, time
from ausam_lab.cli.main import main
import {module} as place

def waits(config, out, **how):
    for done in train(config, out, **how):
        yield done
        while "{name}" in out.parts and done.epoch == {epoch}:
            time.sleep(1)

train, place.train = place.train, waits
"""
