"""Rewrite the damaged result of a finished run from its last checkpoint, without training."""

from __future__ import annotations

import collections
from dataclasses import replace
from pathlib import Path

import torch

from ausam.lab.config import NOT_PART_OF_IDENTITY, Config, completed
from ausam.lab.records import files
from ausam.lab.records.typed_json import typed
from ausam.lab.registry.devices import device
from ausam.lab.training import checkpoint, run_folder
from ausam.lab.training.loop import train


def result_again(out: Path) -> None:
    """If the run's result.json is damaged, rewrite it. This evaluates the network, so it needs the data.

    A ValueError if there is no intact checkpoint of its last epoch.
    """
    if run_folder.finished(out) is not None:
        return
    saved = checkpoint.load(out)
    config = None if saved is None else typed(Config, completed(checkpoint.settings_of(saved) | _here(out)))
    if saved is None or config is None or len(saved["rows"]) != config.epochs:
        raise ValueError(
            f"{out / 'result.json'} is damaged, and {out} has no checkpoint of its last epoch to rewrite it from. "
            "Remove it and run the same command again."
        )
    if config.threads:
        torch.set_num_threads(config.threads)
    collections.deque(train(replace(config, device=device("auto")), out, resume=True), maxlen=0)  # no epoch is left


def _here(out: Path) -> dict[str, object]:
    """Where the run was last computed; its checkpoint may have been written elsewhere."""
    found = files.read_json(out / "config.json") or {}
    return {k: found[k] for k in NOT_PART_OF_IDENTITY if k in found}
