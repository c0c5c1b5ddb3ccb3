"""The record of a finished run: its scores, its cost, and where it was computed."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

import ausam
from ausam_lab.names.expressions import brief_pair, stable_repr
from ausam_lab.records.run import Environment, Hardware, Run, Samples, Score
from ausam_lab.training import auditing
from ausam_lab.training.state import State
from ausam_lab.training.weights import sha256


def record(state: State, train: Score) -> Run:
    """The record of a run after its last epoch; ``train`` is its score on the training samples."""
    config, data, last = state.config, state.data, state.epochs[-1]
    best = None if state.best is None else state.epochs[state.best.epoch - 1]
    return Run(
        method=stable_repr(state.method),
        policy=stable_repr(state.policy),
        pair=brief_pair(state.method, state.policy),
        seed=config.seed,
        epochs=config.epochs,
        test=(best or last).test,
        train=train,
        train_seconds=state.seconds,
        cpu_seconds=last.cpu_seconds,
        samples_forward=last.samples_forward,
        samples_backward=last.samples_backward,
        steps=state.opt.steps,
        skipped_steps=state.opt.skipped,
        weights_sha256=sha256(state.evaluated.state_dict()),
        init_sha256=state.init,
        parameters=sum(p.numel() for p in state.model.parameters()),
        ranks=last.ranks,
        data=Samples(len(data.train_y), len(data.test_y), data.num_outputs),
        environment=environment(config.device),
        config=config,
        best_epoch=None if best is None else best.epoch,
        audit=None if state.ranks.rank else auditing.findings(state.audit, data, config.policy),
    )


def environment(device: str) -> Environment:
    """The machine, the versions and the commit of this process."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    hardware = Hardware(_cpu(), os.cpu_count(), torch.get_num_threads(), _memory(), device, gpu)
    return Environment(hardware, versions(), commit())


def versions() -> dict[str, str]:
    """The versions of everything that can change a result."""
    return {
        "ausam": ausam.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": platform.platform(terse=True),
    }


@functools.cache  # as it was when this process began: what is changed later is not what runs
def commit() -> str | None:
    """The commit of the source, with a plus sign if it has local changes; None for an installed package."""
    git = ["git", "-C", str(Path(ausam.__file__).parent)]
    try:
        # An installed package may be inside an unrelated repository: only a tracked file counts.
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=True)
        describe = [*git, "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> float | None:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
