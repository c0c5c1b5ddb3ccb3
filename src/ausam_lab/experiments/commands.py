"""The settings of a run as flags, for the commands that a report offers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict

from ausam_lab.config import Config, flag_of
from ausam_lab.data.catalogue import resolve
from ausam_lab.names.from_config import with_own_rho


def flags(config: Config, without: Sequence[str] = ()) -> str:
    """The settings of a run, as flags. Those that its data has anyway are left out. Ends with a space."""
    usual = asdict(with_own_rho(resolve(data=config.data, method=config.method, policy=config.policy)))
    words = ["--data", config.data]
    for name, value in asdict(config).items():
        default = Config.__dataclass_fields__[name].default if name in ("method", "policy") else usual[name]
        if value in (default, None) or name in ("data", "label", "kind", *without):
            continue
        words += [flag_of(name)] if value is True else [flag_of(name), str(value)]
    return f"{shlex.join(words)} "
