"""Text in columns, for a terminal of any width and for pipes.

On a terminal, where space is short, columns that are spare are left out and those
that can be cut are cut; into a pipe or a file goes all of it. A hundred thousand
lines take about a second.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

__all__ = ["Cell", "Column", "Row", "duration", "painted", "table", "terminal_width"]

_GAP = "  "
_ELLIPSIS = "…"
_READABLE, _LEAST = 16, 8  # what is left of a text that is cut
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


Row = Sequence[str | Cell]


@dataclass(frozen=True, slots=True)
class Column:
    """How a column looks.

    Attributes:
        name: Its head.
        right: Whether its texts end at the same place, as numbers do.
        cut: Where its texts may be cut: ``"start"``, ``"end"`` or ``""``, nowhere.
        spare: Whether it is left out where space is short.
    """

    name: str
    right: bool = False
    cut: str = ""
    spare: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Row], *, width: int | None = None
) -> list[str]:
    """Return the lines of a table, head first.

    Args:
        columns: How each column looks.
        rows: A text for each column.
        width: Characters in a line of the terminal; None where there is none.
    """
    widths = [
        max(map(len, (column.name, *(str(row[index]) for row in rows))))
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    if width:
        shown = _worth_showing(columns, widths, width)
        _squeeze(columns, widths, shown, width)
    heads: Row = [Cell(column.name, "faint") for column in columns]
    return [
        _GAP.join(_fitted(columns[i], widths[i], row[i]) for i in shown).rstrip()
        for row in (heads, *rows)
    ]


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


def _worth_showing(
    columns: Sequence[Column], widths: Sequence[int], width: int
) -> list[int]:
    """Leave out spare columns, the last ones first, until the rest can be read."""
    shown = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        least = sum(
            min(widths[i], _READABLE) if columns[i].cut else widths[i] for i in shown
        )
        if least + len(_GAP) * (len(shown) - 1) <= width:
            break
        if columns[index].spare:
            shown.remove(index)
    return shown


def _squeeze(
    columns: Sequence[Column], widths: list[int], shown: Sequence[int], width: int
) -> None:
    """Narrow the widest columns that can be cut, a character at a time."""
    can_be_cut = [index for index in shown if columns[index].cut]
    excess = sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1) - width
    for _ in range(max(0, excess)):
        widest = max(can_be_cut, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= _LEAST:
            return
        widths[widest] -= 1


def _fitted(column: Column, width: int, cell: str | Cell) -> str:
    text = _printable(str(cell))
    if len(text) > width:
        if column.cut == "start":
            text = _ELLIPSIS + text[len(text) - width + 1 :]
        else:
            text = text[: width - 1] + _ELLIPSIS
    filling = " " * (width - len(text))
    if isinstance(cell, Cell):
        text = painted(text, cell.mood)
    return filling + text if column.right else text + filling


def _printable(text: str) -> str:
    """Keep names that others chose from steering the terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "·" for letter in text)
