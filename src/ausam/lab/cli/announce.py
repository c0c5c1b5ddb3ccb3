"""What a command says before it trains: the data and the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ausam.lab.config import Config


def problem(config: Config, given: Mapping[str, Any]) -> str:
    """Data, wrong labels, network, epochs and batch size, as one line; ``given`` are the settings of the user."""
    tail = f" with long tail {config.imbalance:g}" if config.imbalance not in (0, 1) else ""
    noise = f"{' and' if tail else ' with'} {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    if noise and "label_noise" not in given:
        noise += " (the default for this data; --label-noise 0 for none)"
    epochs = f"{config.epochs} epoch{'s' * (config.epochs > 1)}"
    return f"{config.data}{tail}{noise}, {config.model}, {epochs}, batch {config.batch_size}"
