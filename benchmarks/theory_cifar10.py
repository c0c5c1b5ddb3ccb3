"""The paper's lemma and theorems and the flatness of the minima, measured on CIFAR-10 with the commands of the package.

    python benchmarks/theory_cifar10.py --data-dir DIR      # train, diagnose, write docs/results/theory-cifar10.json
    python benchmarks/theory_cifar10.py --only flatness     # measure this part again, keep the other
    python tools/figures.py                                 # draw docs/results/theory-cifar10-*.png

2,000 images of CIFAR-10, 20 % of them with a wrong label or all right ("clean"), and a ResNet with BatchNorm. Training
takes about 20 minutes of one core, the theory as long, and flatness about 12 minutes. Stop it at any time; the same
command continues.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from theory import RESULTS, rounded  # beside this file

from ausam import diagnostics as dg
from ausam_lab.experiments.diagnose.subject import open_run

SETTINGS = (
    "--data cifar10 --train-size 2000 --test-size 2000 --model resnet-small-w8 --augment none --batch-size 64 "
    "--epochs 40 --lr 0.1 --rho 0.1 --threads 1"
)
NOISY = f"{SETTINGS} --label-noise 0.2 --ramp 6 --seeds 1 --every 1"
CLEAN = f"{SETTINGS} --method sam --every 4"
OVER_TRAINING = ("lemma1", "theorem1", "theorem4")
OTHERS = ("theorem2", "theorem3", "geometry", "selection")  # of AUSAM's run alone
NAMES = {"SAM": "noisy/runs/sam/seed-0", "AUSAM-0.5": "noisy/runs/ausam-0.5/seed-0", "SAM clean": "clean"}


def ausam(words: str, data_dir: str, *places: Path) -> None:
    """Run one command of the package, or stop."""
    command = [sys.executable, "-m", "ausam", *words.split(), *map(str, places), "--data-dir", data_dir]
    subprocess.run(command, check=True)


def train(runs: Path, data_dir: str) -> None:
    """Train the four methods on noisy labels, unless they are there."""
    ausam(f"compare sgd sam ausam-0.5 sam+random {NOISY} --out", data_dir, runs / "noisy")


def theory(runs: Path, data_dir: str) -> dict:
    """The lemma and the theorems: diagnose what is not there yet, and condense it."""
    if not (runs / "clean" / "result.json").exists():
        resume = "--resume " if (runs / "clean" / "config.json").exists() else ""
        ausam(f"train {CLEAN} {resume}--out", data_dir, runs / "clean")
    for name, place in NAMES.items():
        parts = (*OVER_TRAINING, *(OTHERS if name == "AUSAM-0.5" else ()))
        ausam(f"diagnose --threads 1 --samples 512 --what {','.join(parts)}", data_dir, runs / place)
    return condensed(runs)


def flatness(runs: Path, data_dir: str) -> dict:
    """The last weights of the four methods, side by side."""
    ausam("diagnose --threads 1 --samples 256 compare", data_dir, runs / "noisy")
    saved = json.loads((runs / "noisy" / "flatness.json").read_text())
    conditions = saved["conditions"]
    return {
        "flatness": {
            "conditions": {
                "command": f"ausam compare sgd sam ausam-0.5 sam+random {NOISY}; ausam diagnose --samples 256 compare",
                "samples": conditions["samples"],
                "rho": conditions["rho"],
                "environment": conditions["environment"],
            },
            "findings": [finding["text"] for finding in saved["findings"]],
            "runs": saved["runs"],
            "between": saved["between"],
            "same_loss": same_loss(runs / "noisy" / "runs", data_dir, {r["label"]: r for r in saved["runs"]}),
        }
    }


def same_loss(runs: Path, data_dir: str, ended: dict) -> list[dict]:
    """SGD at the epoch whose training loss is closest to the final one of each other method: has that fitted less?"""
    torch.set_num_threads(1)
    subject = open_run(
        runs / "sgd" / "seed-0", ended["SGD"]["whole"]["samples"], ended["SGD"]["whole"]["rho"][2], data_dir=data_dir
    )
    batches = [(subject.x, subject.y)]

    def loss(epoch: int) -> float:
        subject.at(epoch)
        with torch.no_grad():
            return float(subject.losses(subject.x, subject.y).mean())

    losses = {epoch: loss(epoch) for epoch in subject.epochs}
    nearest = []
    for name, run in ended.items():
        if name != "SGD":
            epoch = min(losses, key=lambda e: abs(losses[e] - run["whole"]["loss"]))
            subject.at(epoch)
            eigen = dg.hessian_eigenvalues(subject.model, subject.losses, batches, k=1)
            trace = dg.hessian_trace(subject.model, subject.losses, batches, probes=32)
            sharp = dg.sharpness(subject.model, subject.losses, batches, subject.rho)
            row = {"eigenvalues": asdict(eigen), "trace": asdict(trace), "whole": asdict(sharp)}
            nearest.append({"as": name, "epoch": epoch, "loss": losses[epoch], **row})
    return nearest


def rows(place: Path, part: str) -> list[dict]:
    """A part over training, from the pieces that the command has saved, without the figures of single samples."""
    pieces = [json.loads(path.read_text()) for path in sorted(place.glob(f"diagnosis/{part}-*.json"))]
    left_out = ("format", "version", "dlp", "norms", "projections")
    return [{k: v for k, v in row.items() if k not in left_out} for row in pieces]


def condensed(runs: Path) -> dict:
    """What the page and its pictures need of the records of the theory."""
    place = runs / NAMES["AUSAM-0.5"]
    files = [json.loads((place / f"{name}.json").read_text()) for name in ("diagnosis", "theory")]
    ausam_run = files[0] | files[1]
    measured = {name: {part: rows(runs / place, part) for part in OVER_TRAINING} for name, place in NAMES.items()}
    measured["AUSAM-0.5"]["lemma1"] = ausam_run["lemma1"]["rows"]  # with the averages over earlier epochs
    measured["AUSAM-0.5"] |= {part: ausam_run[part] for part in OTHERS}
    return {
        "conditions": {
            "noisy": f"ausam compare sgd sam ausam-0.5 sam+random {NOISY}",
            "clean": f"ausam train {CLEAN}",
            "samples": ausam_run["conditions"]["samples"],
            "parameters": ausam_run["conditions"]["parameters"],
            "environment": ausam_run["conditions"]["environment"],
        },
        "accuracy": {
            path.parent.relative_to(runs).as_posix(): json.loads(path.read_text())["test"]["value"]
            for path in (*sorted(runs.glob("noisy/runs/*/seed-0/result.json")), runs / "clean" / "result.json")
        },
        "runs": measured,
    }


PARTS = {"theory": theory, "flatness": flatness}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default="data", help="where CIFAR-10 is, or where to download it to")
    parser.add_argument("--runs", type=Path, default=Path("runs/theory-cifar10"), help="folder of the runs")
    parser.add_argument("--only", choices=PARTS, help="measure this part again, keep the other")
    arguments = parser.parse_args()
    path = RESULTS / "theory-cifar10.json"
    train(arguments.runs, arguments.data_dir)
    results = json.loads(path.read_text()) if arguments.only else {}
    for part in [arguments.only] if arguments.only else PARTS:
        results |= PARTS[part](arguments.runs, arguments.data_dir)
    path.write_text(json.dumps(rounded(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
