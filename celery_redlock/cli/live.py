"""A screen that is drawn anew until Ctrl-C."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import TYPE_CHECKING

import click

from celery_redlock.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["show_live"]

_LONGEST_SHARE = 0.2  # of the time for making frames


def show_live(
    frame: Callable[[], Sequence[str]], *, every: float, plain: bool = False
) -> None:
    """Draw a frame again and again. Returns after Ctrl-C.

    With rich it has a screen to itself and does not flicker; without, the screen is
    cleared each time; where there is no screen, frames follow each other.

    Args:
        frame: Returns the lines to show. What does not fit is cut off.
        every: Seconds from frame to frame; more, where making one takes long.
        plain: Let frames follow each other also where there is a screen.
    """
    clock = SYSTEM_CLOCK
    with contextlib.suppress(KeyboardInterrupt), _screen(plain=plain) as show:
        while True:
            began = clock.monotonic()
            lines = frame()
            took = clock.monotonic() - began
            show(lines)
            clock.sleep(max(every - took, took / _LONGEST_SHARE - took))


@contextlib.contextmanager
def _screen(*, plain: bool) -> Iterator[Callable[[Sequence[str]], None]]:
    if plain or not sys.stdout.isatty():
        yield lambda lines: click.echo("\n".join(lines))
        return
    try:
        from rich.live import Live  # noqa: PLC0415  (an extra, and slow to import)
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        yield _show_plainly
        return
    with Live(screen=True, auto_refresh=False) as live:
        yield lambda lines: live.update(
            Text.from_ansi("\n".join(_cut(lines)), no_wrap=True, overflow="crop"),
            refresh=True,
        )


def _show_plainly(lines: Sequence[str]) -> None:
    click.clear()
    click.echo("\n".join(_cut(lines)))


def _cut(lines: Sequence[str]) -> Sequence[str]:
    return lines[: shutil.get_terminal_size().lines - 1]
