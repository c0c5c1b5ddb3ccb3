"""Digests of file contents."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def of_bytes(data: bytes) -> str:
    """The SHA-256 of these bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def of_json(content: Any) -> str:
    """The SHA-256 of a JSON value, independent of the order of keys and the layout of the text."""
    return of_bytes(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
