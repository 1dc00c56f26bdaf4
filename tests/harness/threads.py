"""List the threads that a test starts, and not those of other tests."""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def threads_started_here() -> Iterator[list[Any]]:
    """List the threads that the caller's thread starts within the block.

    A count of the process's threads would also see those of other tests, which start
    and end at any time. A thread is listed as its ``threading.Thread``, or as the
    function that ``_thread.start_new_thread`` was given.
    """
    started: list[Any] = []
    caller = threading.get_ident()
    start, start_new_thread = threading.Thread.start, _thread.start_new_thread

    def note_thread(self: threading.Thread) -> None:
        if threading.get_ident() == caller:
            started.append(self)
        start(self)

    def note_function(function: Callable[..., object], *args: Any) -> int:
        if threading.get_ident() == caller:
            started.append(function)
        return start_new_thread(function, *args)

    with (
        mock.patch.object(threading.Thread, "start", note_thread),
        # The module threading has its own reference, and is not counted twice.
        mock.patch.object(_thread, "start_new_thread", note_function),
    ):
        yield started
