"""From the arguments of a command to the settings of its runs. What has no effect or cannot work raises an error."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from ausam_lab.config import PAIR_SETTINGS, Config
from ausam_lab.data.catalogue import defaults_for, problem, resolve
from ausam_lab.names.from_config import configured, method_and_policy, refuse_idle, typed_settings, with_own_rho
from ausam_lab.networks.build import builder

READERS = {".toml": tomllib.loads, ".json": json.loads}


def given(args: argparse.Namespace, elsewhere: Collection[str] = ()) -> dict[str, Any]:
    """The settings of the user: by flags, which take precedence, and in a --config file.

    ``elsewhere``: settings that the command gets in another way. The file may hold them only at their defaults.
    """
    flags = {f.name: getattr(args, f.name) for f in fields(Config) if hasattr(args, f.name)}
    if (path := getattr(args, "config", None)) is None:
        return flags
    in_file = read(Path(path), elsewhere)
    if flags.keys() & {"method", "policy"}:  # the label and the kind of the file are those of its own pair
        in_file |= {"label": "", "kind": ""}
    # A run's config.json also holds its data's defaults. Nobody asked for those, so they may have no effect.
    suiting = defaults_for((in_file | flags).get("data", Config.data))
    return {k: v for k, v in in_file.items() if v != suiting.get(k)} | flags


def read(path: Path, elsewhere: Collection[str] = ()) -> dict[str, Any]:
    """The settings in a file: a run's config.json, or any part of one, as JSON or TOML."""
    if path.suffix not in READERS:
        raise ValueError(f"--config {path}: its name must end in .toml or .json.")
    if path.exists() and not path.is_file():
        raise ValueError(f"--config {path} is not a regular file.")  # a pipe would wait for its writer
    try:
        settings = READERS[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--config {path} is not {path.suffix[1:].upper()}: {error}.") from None
    try:
        settings = typed_settings(settings)
    except ValueError as error:
        raise ValueError(f"--config {path}: {error}") from None
    for name, value in settings.items():
        if name in elsewhere and value != getattr(Config, name):
            raise ValueError(f"--config {path}: {name} is {value!r}, but this command sets it itself. Leave it out.")
    return {name: value for name, value in settings.items() if name not in elsewhere}


def of_method(given: Mapping[str, Any]) -> Config:
    """The settings of one run."""
    config = resolve(**given)
    return config if "rho" in given else with_own_rho(config)


def of_pair(name: str, given: Mapping[str, Any]) -> Config:
    """The settings of one run of a named pair, the same as in a comparison."""
    if twice := [setting for setting in PAIR_SETTINGS if setting != "seed" and setting in given]:
        also = f"{twice[0]} is {given[twice[0]]!r}"
        raise ValueError(f"{name} names a method and a policy, but {also} too. Leave out one of the two.")
    return configured(name, resolve(**given), rho_given="rho" in given)


def prepare(config: Config, runs: list[Config], given: Mapping[str, Any]) -> None:
    """Raise an error for what cannot work, then fetch the data, before the progress bar: a download shows its own."""
    methods = [method_and_policy(run, steps=1)[0] for run in runs]
    refuse_idle(given, runs)
    if given.get("replay") and all(method.passes[0] <= 1 for method in methods):
        names = " and ".join(dict.fromkeys(type(method).__name__ for method in methods))
        raise ValueError(
            f"--replay affects only later passes, but a step of {names} has one pass only. Leave out --replay."
        )
    builder(config.model)
    for labels in dict.fromkeys([*(run.labels for run in runs), config.labels]):  # the last one is kept
        problem(replace(config, labels=labels))


def use_threads(threads: int) -> None:
    """Compute with so many threads, or as many as torch chooses if it is 0."""
    if threads:
        torch.set_num_threads(threads)


def announcement(config: Config, given: Mapping[str, Any]) -> str:
    """Data, wrong labels, network, epochs and batch size, as one line. ``given`` are the settings of the user."""
    tail = f" with long tail {config.imbalance:g}" if config.imbalance not in (0, 1) else ""
    noise = f"{' and' if tail else ' with'} {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    if noise and "label_noise" not in given:
        noise += " (the default for this data, --label-noise 0 for none)"
    epochs = f"{config.epochs} epoch{'s' * (config.epochs > 1)}"
    return f"{config.data}{tail}{noise}, {config.model}, {epochs}, batch {config.batch_size}"
