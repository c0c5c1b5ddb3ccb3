"""Text for people: figures with their spread, and lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "–"


def clean(value: object) -> str:
    """Text without control characters, which are illegal in XML and which a terminal would obey.

    A no-break space stays, although Python does not call it printable.
    """
    text = str(value)
    if text.isprintable():  # almost always, and in one call
        return text
    return "".join(c if c.isprintable() or c == "\u00a0" else " " for c in text)


def show(value: float | None, digits: int, std: float | None = None) -> str:
    """Write a figure with its spread; a dash where it is missing."""
    return NONE if value is None else f"{value:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def join(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
