"""Text in columns, for a terminal of any width and for pipes.

On a terminal, columns that can spare it are cut so that lines fit; into a pipe or a
file goes all of it. Drawing a hundred thousand lines takes about a second.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Cell", "Column", "duration", "painted", "table", "terminal_width"]

_GAP = "  "
_NARROWEST = 8
_COLORS = {"good": "green", "warning": "yellow", "bad": "red"}
_TENTHS_MATTER = 9.95  # seconds
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


@dataclass(frozen=True, slots=True)
class Cell:
    """A text that means well or ill.

    Attributes:
        text: What it says.
        mood: ``good``, ``warning``, ``bad`` or ``faint``.
    """

    text: str
    mood: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Column:
    """How a column looks.

    Attributes:
        name: Its head.
        right: Whether its texts end at the same place, as numbers do.
        yields: Whether it may be cut where space is short.
    """

    name: str
    right: bool = False
    yields: bool = False


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Cell]],
    *,
    width: int | None = None,
) -> list[str]:
    """Return the lines of a table, head first.

    Args:
        columns: How each column looks.
        rows: A text for each column.
        width: Columns of the terminal; None where there is none.
    """
    texts = [[_printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max(map(len, (column.name, *(row[index] for row in texts))))
        for index, column in enumerate(columns)
    ]
    if width:
        _squeeze(widths, columns, width)
    head = [
        painted(text, "faint")
        for text in _fitted(columns, widths, [c.name for c in columns])
    ]
    lines = [_GAP.join(head).rstrip()]
    for row, cells in zip(texts, rows, strict=True):
        fitted = _fitted(columns, widths, row)
        drawn = [
            painted(text, cell.mood) if isinstance(cell, Cell) else text
            for text, cell in zip(fitted, cells, strict=True)
        ]
        lines.append(_GAP.join(drawn).rstrip())
    return lines


def painted(text: str, mood: str) -> str:
    """Return the text in the color of a mood."""
    return click.style(text, fg=_COLORS.get(mood), dim=mood == "faint" or None)


def terminal_width() -> int | None:
    """Return how many columns there are on stdout, or None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def duration(seconds: float) -> str:
    """Return a duration as people say it: ``0.4 s``, ``12 s``, ``3 m 05 s``."""
    if seconds == float("inf"):
        return "for ever"
    if seconds < _TENTHS_MATTER:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, part, smaller in _UNITS:
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02} {smaller}"
    return f"{whole} s"


def _printable(text: str) -> str:
    """Keep what keys are called from steering the terminal."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else "·" for c in text)
    )


def _squeeze(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Narrow the widest columns that may be, one character at a time."""
    yielding = [index for index, column in enumerate(columns) if column.yields]
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    while excess > 0 and yielding:
        widest = max(yielding, key=lambda index: widths[index])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1
        excess -= 1


def _fitted(
    columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]
) -> list[str]:
    fitted = []
    for column, width, text in zip(columns, widths, row, strict=True):
        shown = text if len(text) <= width else f"{text[: width - 1]}…"
        fitted.append(shown.rjust(width) if column.right else shown.ljust(width))
    return fitted
