"""Finished measurements, one file per piece, so that an interrupted diagnosis can continue."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ausam.lab.diagnose.records import VERSION
from ausam.lab.records import versioned

T = TypeVar("T")
log = logging.getLogger("ausam")


@dataclass(frozen=True)
class Store:
    """The pieces in a folder; the key of each covers everything that its figures depend on."""

    folder: Path

    def path(self, name: str, key: dict[str, Any]) -> Path:
        """The file of a piece."""
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{name}-{digest[:12]}.json"

    def piece(self, name: str, key: dict[str, Any], kind: type[T], measure: Callable[[], T]) -> T:
        """Read the piece if it is there; otherwise measure and save it."""
        path = self.path(name, key)
        try:
            found = versioned.read(path, name, VERSION, kind)
        except ValueError as error:
            log.warning("%s Measuring it again.", error)
            found = None
        if found is None:
            found = measure()
            versioned.write(path, name, VERSION, found)
        return found
