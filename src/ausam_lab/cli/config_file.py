"""Settings from a file (``--config``): a run's ``config.json``, or any part of one, as JSON or TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_type_hints

from ausam_lab.config import Config
from ausam_lab.names.lookup import unknown
from ausam_lab.records.typed_json import typed

READERS = {".toml": tomllib.loads, ".json": json.loads}


def read(path: Path, elsewhere: Collection[str] = ()) -> dict[str, Any]:
    """The settings in a file; a ValueError for an unknown name or a value that a setting cannot have.

    ``elsewhere``: settings that the command gets in another way; the file may hold them only at their defaults.
    """
    if path.suffix not in READERS:
        raise ValueError(f"--config {path}: its name must end in .toml or .json.")
    try:
        settings = READERS[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--config {path} is not {path.suffix[1:].upper()}: {error}.") from None
    if not isinstance(settings, dict):
        raise ValueError(f"--config {path} contains {settings!r:.80} instead of settings.")
    hints = get_type_hints(Config)
    for name, value in settings.items():
        if name not in hints:
            raise ValueError(f"--config {path}: {unknown('setting', name, list(hints))}")
        try:
            settings[name] = typed(hints[name], value, name)
        except ValueError as error:
            raise ValueError(f"--config {path}: {error}, which is not a value of this setting.") from None
        if name in elsewhere and value != getattr(Config, name):
            raise ValueError(f"--config {path}: {name} is {value!r}, but this command sets it itself. Leave it out.")
    return {name: value for name, value in settings.items() if name not in elsewhere}
