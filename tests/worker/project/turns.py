"""Counts the turns of the loops in the processes of a worker, each into a file.

A turn is a wait of a selector, a step of the watchdog, and in a pool of greenlets each
turn of the hub. A loop that spins makes thousands of them in a second.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import signals

from celery_redlock.locks.watchdog import Watchdog

TURNS = "project_turns"  # the setting that names the folder of the files


class _Counter:
    """One byte in the file of a process for each turn of its loops.

    Attributes:
        watcher: That of gevent's loop, which does not keep it alive.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pid = self._file = 0
        self.watcher: Any = None

    def note(self, *_: object) -> None:
        """Count one turn of this process, which may be a forked child."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            path = Path(self._folder, str(self._pid))
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, b".")

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, so that each call of it counts."""

        def run(*args: Any, **named: Any) -> Any:
            self.note()
            return function(*args, **named)

        return run


def turns_in(folder: Path) -> int:
    """Return the turns so far in all processes of the worker."""
    return sum(file.stat().st_size for file in folder.iterdir())


@signals.celeryd_init.connect(weak=False)
def _count_turns(conf: Any = None, **_: Any) -> None:
    folder = conf.get(TURNS)
    if not folder:
        return
    counter, kind = _Counter(folder), _greenlets()
    if kind == "gevent":
        from gevent import get_hub  # noqa: PLC0415  (an extra)

        counter.watcher = get_hub().loop.prepare()
        counter.watcher.start(counter.note)
    elif kind == "eventlet":
        from eventlet import hubs  # noqa: PLC0415  (an extra)

        hub: Any = hubs.get_hub()
        hub.wait = counter.counted(hub.wait)
    else:
        kind_of_selector: Any = selectors.DefaultSelector
        kind_of_selector.select = counter.counted(kind_of_selector.select)
    Watchdog.step = counter.counted(Watchdog.step)  # type: ignore[method-assign]


def _greenlets() -> str:
    """Return the library that has patched this worker, or ``""``."""
    if "gevent.monkey" in sys.modules:
        from gevent import monkey  # noqa: PLC0415  (an extra)

        if monkey.is_module_patched("socket"):
            return "gevent"
    if "eventlet.patcher" in sys.modules:
        from eventlet import patcher  # noqa: PLC0415  (an extra)

        if patcher.is_monkey_patched("socket"):
            return "eventlet"
    return ""
