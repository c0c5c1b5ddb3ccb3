"""What is measured already: a file for each piece of work, so that a diagnosis that was killed can continue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ausam.lab.diagnose.records import VERSION
from ausam.lab.io import digests, sealed

T = TypeVar("T")
log = logging.getLogger("ausam")


@dataclass(frozen=True)
class Store:
    """The pieces in a folder; each has a key of all that its figures depend on."""

    folder: Path

    def path(self, name: str, key: dict[str, Any]) -> Path:
        """Where a piece lies."""
        return self.folder / f"{name}-{digests.of_json(key)[:12]}.json"

    def piece(self, name: str, key: dict[str, Any], kind: type[T], measure: Callable[[], T]) -> T:
        """The piece as it lies there, or measured now and kept."""
        path = self.path(name, key)
        try:
            found = sealed.read(path, name, VERSION, kind)
        except ValueError as error:
            log.warning("%s It is measured again.", error)
            found = None
        if found is None:
            found = measure()
            sealed.write(path, name, VERSION, found)
        return found
