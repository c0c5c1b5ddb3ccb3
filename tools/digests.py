"""Digests of the weights of twenty short runs: the oracle of a redesign that must not change a figure.

    python tools/digests.py digests.json            # record
    python tools/digests.py digests.json --check    # train again and compare; exit code 1 if one differs

Digests belong to one machine and one torch: record them before a change and check them after it, on the same host.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SMALL = ["--train-size", "256", "--test-size", "128", "--epochs", "3", "--batch-size", "32", "--threads", "1"]

# What follows `ausam train`: methods, policies, networks, data, settings.
RUNS: dict[str, list[str]] = {
    "sgd": ["sgd"],
    "sam": ["sam"],
    "ausam": ["ausam-0.5"],
    "ausam-0.6-ramp": ["ausam-0.6", "--ramp", "2"],
    "random": ["sam+random"],
    "trusted": ["sam+trusted", "--epochs", "8"],
    "looksam": ["--method", "LookSAM"],
    "esam": ["--method", "ESAM"],
    "vsam": ["--method", "VSAM"],
    "saf": ["--method", "SAF"],
    "mesa": ["--method", "MESA"],
    "ksam": ["--method", "KSAM"],
    "rst": ["--method", "RST"],
    "wsam": ["--method", "WSAM"],
    "gsam-infobatch": ["--method", "GSAM", "--policy", "InfoBatch"],
    "asam-orderdp": ["--method", "ASAM", "--policy", "OrderDP"],
    "sgd-toploss-adamw": ["--method", "Plain", "--policy", "TopLoss", "--base", "adamw", "--lr", "0.001"],
    "ascent-average": ["--method", "SAM(ascent=0.5)", "--average", "0.9", "--label-noise", "0.2"],
    "cifar-like": ["sam", "--model", "resnet-tiny-w32", "--augment", "standard", "--replay"],
    "quantised": ["sam", "--quantize", "4"],
}


def main() -> int:
    """Record or check."""
    path, check = Path(sys.argv[1]), "--check" in sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(2) as pool:
            made = pool.map(lambda item: _digest(item[1], Path(folder) / item[0]), RUNS.items())
        digests = dict(zip(RUNS, made, strict=True))
        digests["resumed"] = _resumed(Path(folder) / "resumed")
    if not check:
        path.write_text(json.dumps(digests, indent=1) + "\n")
        return 0
    before = json.loads(path.read_text())
    differ = [name for name in digests if before.get(name) != digests[name]]
    print("differ: " + ", ".join(differ) if differ else f"{len(digests)} digests are equal")
    return bool(differ)


def _train(arguments: list[str], out: Path) -> None:
    command = [sys.executable, "-m", "ausam", "train", *SMALL, *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _digest(arguments: list[str], out: Path) -> str:
    _train(arguments, out)
    newest = max(out.rglob("*.pt"), key=lambda p: p.stat().st_mtime_ns)
    weights = torch.load(newest, weights_only=True)["model"]
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _resumed(out: Path) -> str:
    """Three epochs, of which the last is trained again: the newest checkpoint is removed and the command repeated."""
    _train(["ausam-0.5"], out)
    newest = max(out.rglob("*.pt"), key=lambda p: p.stat().st_mtime_ns)
    newest.unlink()
    (out / "result.json").unlink()
    return _digest(["ausam-0.5", "--resume"], out)


if __name__ == "__main__":
    sys.exit(main())
