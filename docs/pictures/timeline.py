"""Draw what jobs did as an SVG that reads well on light and on dark pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bar", "Lane", "draw"]

_LEFT, _RIGHT, _TOP = 96, 24, 46
_WIDTH, _LANE, _BAR, _THIN, _LETTER = 760, 40, 18, 8, 6.0

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.small { font-size: 11.5px; fill: #59636e; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.grid { stroke: #d1d9e0; stroke-dasharray: 2 4; }
.queued { fill: none; stroke: #818b98; stroke-dasharray: 4 3; }
.slot { fill: #d4a72c55; stroke: #9a6700; }
.running { fill: #0969da; }
.cancelled { fill: #cf222e; }
.lock { fill: #8250df; }
.claim { fill: #bf8700; }
.cooldown { fill: #1a7f37; }
.end { fill: #cf222e; }
.label { fill: #ffffff; font-size: 11.5px; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9198a1; }
  .card { fill: #0d1117; stroke: #3d444d; }
  .grid { stroke: #3d444d; }
  .queued { stroke: #9198a1; }
  .slot { fill: #9e6a0355; stroke: #d29922; }
  .running { fill: #1f6feb; }
  .cancelled, .end { fill: #da3633; }
  .lock { fill: #8957e5; }
  .claim { fill: #d29922; }
  .cooldown { fill: #238636; }
}
""".strip()


@dataclass(frozen=True)
class Bar:
    """What somebody did for a while, in seconds from the start.

    Attributes:
        kind: A class of the style: ``queued``, ``slot``, ``running``, ...
        begin: When it began.
        end: When it ended.
        label: Written on it.
    """

    kind: str
    begin: float
    end: float
    label: str = ""


@dataclass
class Lane:
    """One line of the picture.

    Attributes:
        name: What stands in front of it.
        bars: What happened, in order.
        ends: Instants that are marked, each with what is said there.
        is_thin: Whether it belongs to the nodes rather than to a job.
    """

    name: str
    bars: list[Bar] = field(default_factory=list)
    ends: list[tuple[float, str]] = field(default_factory=list)
    is_thin: bool = False


def draw(title: str, alt: str, lanes: list[Lane], seconds: float) -> str:
    """Return the picture."""
    scale = (_WIDTH - _LEFT - _RIGHT) / seconds
    height = _TOP + _LANE * len(lanes) + 34

    def x(at: float) -> float:
        return round(_LEFT + at * scale, 1)

    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    inside = f'x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(alt)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="card" {inside} rx="8"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
    ]
    bottom = _TOP + _LANE * len(lanes)
    step = 0.5
    for number in range(int(seconds / step) + 1):
        at = number * step
        out.append(
            f'<line class="grid" x1="{x(at)}" x2="{x(at)}" y1="{_TOP - 6}" '
            f'y2="{bottom}"/><text class="small" x="{x(at)}" y="{bottom + 18}" '
            f'text-anchor="middle">{at:g} s</text>'
        )
    for number, lane in enumerate(lanes):
        out += _lane(lane, _TOP + _LANE * number, x)
    return "\n".join([*out, "</svg>", ""])


def _lane(lane: Lane, top: float, place: Callable[[float], float]) -> list[str]:
    high = _THIN if lane.is_thin else _BAR
    y = top + (_LANE - high) / 2 - 4
    kind = "small" if lane.is_thin else ""
    out = [f'<text class="{kind}" x="16" y="{y + high / 2 + 4.5}">{lane.name}</text>']
    for bar in lane.bars:
        begin, end = place(bar.begin), place(bar.end)
        width = max(2.0, round(end - begin, 1))
        out.append(
            f'<rect class="{bar.kind}" x="{begin}" y="{y}" width="{width}" '
            f'height="{high}" rx="{3 if high > _THIN else 2}"/>'
        )
        if bar.label and width > _LETTER * len(bar.label) + 12:
            style = "label" if bar.kind in ("running", "cancelled") else "small"
            out.append(
                f'<text class="{style}" x="{begin + 6}" y="{y + 13}">'
                f"{escape(bar.label)}</text>"
            )
    for at, words in lane.ends:
        out.append(
            f'<circle class="end" cx="{place(at)}" cy="{y + high / 2}" r="4"/>'
            f'<text class="small" x="{place(at) + 9}" y="{y + high / 2 + 4}">'
            f"{escape(words)}</text>"
        )
    return out
