"""What a command says before it trains: the data, the network, and what a newcomer would not expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from ausam.lab.config import Config
from ausam.lab.registry.expressions import parse
from ausam.lab.registry.from_config import method_and_policy

PART = 0.15  # of the epochs: the paper's ramp, 30 of 200


def runs(config: Config, all_runs: Sequence[Config], given: Mapping[str, Any], out: TextIO) -> None:
    """Say what is trained; ``given`` are the settings that the user chose."""
    out.write(f"{problem(config, given)}\n")
    if warning := long_ramp(all_runs):
        out.write(f"{warning}\n")


def problem(config: Config, given: Mapping[str, Any]) -> str:
    """Data, wrong labels, network, epochs and batch size, as one line."""
    tail = f" with long tail {config.imbalance:g}" if config.imbalance not in (0, 1) else ""
    noise = f"{' and' if tail else ' with'} {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    if noise and "label_noise" not in given:
        noise += " (the default for this data; --label-noise 0 for none)"
    epochs = f"{config.epochs} epoch{'s' * (config.epochs > 1)}"
    return f"{config.data}{tail}{noise}, {config.model}, {epochs}, batch {config.batch_size}"


def long_ramp(all_runs: Sequence[Config]) -> str:
    """A warning if the scores of a policy hardly count, because their influence grows for longer than the training."""
    for run in all_runs:
        _, policy = method_and_policy(run, steps=1)
        ramp = getattr(policy, "ramp", 0)
        if ramp >= run.epochs > getattr(policy, "full_epochs", 0):
            written = parse("policy", run.policy)
            better = f"{'ramp=' if 'ramp' in written.arguments else '--ramp '}{round(PART * run.epochs)}"
            return (
                f"{written.name}: the influence of the scores grows over {ramp} epochs (ramp), but the training has "
                f"{run.epochs}, so they hardly count. Use {better}, about {PART:g} of the epochs."
            )
    return ""
