"""Draw bars: an SVG that reads on light and dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bar", "bars"]

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 720, 200, 90, 34, 46
_INK, _PALE = "#222", "#666"
_COLOURS = {"ours": "#c2410c", "theirs": "#64748b", "floor": "#a3b1c2"}


class Bar(NamedTuple):
    """One bar: what it is, how long, and what is written at its end.

    Attributes:
        name: Written before it.
        value: Its length, in whatever unit; those of one picture share it.
        second: The length of the thin bar below it.
        text: Written after it.
        kind: ``"ours"``, ``"theirs"`` or ``"floor"``, which gives its colour.
    """

    name: str
    value: float
    second: float
    text: str
    kind: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Return the picture as SVG."""
    longest = max(max(row.value, row.second) for row in rows)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    height = _TOP + _ROW * len(rows) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"',
        '     font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#fff"/>',
        f'<text x="16" y="26" fill="{_INK}" font-weight="600">{escape(title)}</text>',
    ]
    for number, row in enumerate(rows):
        lines += _drawn(row, _TOP + number * _ROW, scale)
    return "\n".join([*lines, "</svg>", ""])


def _drawn(row: Bar, y: int, scale: float) -> list[str]:
    colour, weight = _COLOURS[row.kind], 600 if row.kind == "ours" else 400
    wide, thin = row.value * scale, row.second * scale
    bar = f'<rect x="{_LEFT}" fill="{colour}"'
    name = f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end" fill="{_INK}"'
    end = f'<text x="{_LEFT + max(wide, thin) + 8:.1f}" y="{y + 16}" fill="{_PALE}">'
    return [
        f'{name} font-weight="{weight}">{escape(row.name)}</text>',
        f'{bar} y="{y + 3}" width="{wide:.1f}" height="14"/>',
        f'{bar} y="{y + 19}" width="{thin:.1f}" height="5" opacity="0.5"/>',
        f"{end}{escape(row.text)}</text>",
    ]
