"""A screen that is redrawn until Ctrl-C."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import TYPE_CHECKING

import click

from celery_redlock.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_MAX_SHARE = 0.2  # of the time, for making frames


def show_live(
    frame: Callable[[], Iterable[str]], *, every: float, plain: bool = False
) -> None:
    """Show a new frame again and again. Returns after Ctrl-C.

    On a terminal with rich, frames replace each other on a screen of their own without
    flicker. Without rich, the screen is cleared for each. Elsewhere they are printed
    one after the other.

    Args:
        frame: Returns the lines to show. Lines that do not fit are cut off.
        every: Seconds from frame to frame; more if making one takes long.
        plain: Print frames one after the other on a terminal too.
    """
    clock = SYSTEM_CLOCK
    with contextlib.suppress(KeyboardInterrupt), _screen(plain=plain) as show:
        while True:
            began = clock.monotonic()
            lines = list(frame())
            took = clock.monotonic() - began
            show(lines)
            clock.sleep(max(every - took, took / _MAX_SHARE - took))


@contextlib.contextmanager
def _screen(*, plain: bool) -> Iterator[Callable[[Sequence[str]], None]]:
    if plain or not sys.stdout.isatty():
        yield lambda lines: click.echo("\n".join(lines))
        return
    try:
        from rich.live import Live  # noqa: PLC0415  (an extra, and slow to import)
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        yield _clear_and_print
        return
    with Live(screen=True, auto_refresh=False) as live:
        yield lambda lines: live.update(
            Text.from_ansi("\n".join(_cut(lines)), no_wrap=True, overflow="crop"),
            refresh=True,
        )


def _clear_and_print(lines: Sequence[str]) -> None:
    click.clear()
    click.echo("\n".join(_cut(lines)))


def _cut(lines: Sequence[str]) -> Sequence[str]:
    return lines[: shutil.get_terminal_size().lines - 1]
