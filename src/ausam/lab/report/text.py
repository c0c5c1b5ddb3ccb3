"""Text for people: figures with their spread, lists in sentences, and terminal tables."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "–"


def clean(value: object) -> str:
    """Text without control characters, which are illegal in XML and which a terminal would obey.

    A no-break space stays, although Python does not call it printable.
    """
    return "".join(c if c.isprintable() or c == "\u00a0" else " " for c in str(value))


def show(value: float | None, digits: int, std: float | None = None) -> str:
    """Write a figure with its spread; a dash where it is missing."""
    return NONE if value is None else f"{value:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def join(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def text_table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], sections: Sequence[int] = (), left: Sequence[int] = (0,)
) -> str:
    """A table for a terminal or a file: columns in ``left`` are left-aligned, the others right-aligned.

    ``sections``: row numbers after which to draw a line. As wide as its content, whatever the terminal's width.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(heading):
        table.add_column(Text(clean(name)), justify="left" if i in left else "right", no_wrap=True)
    for i, row in enumerate(rows):
        table.add_row(*(Text(clean(cell)) for cell in row), end_section=i in sections)
    console = Console(width=10_000, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
