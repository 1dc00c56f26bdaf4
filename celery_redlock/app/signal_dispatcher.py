"""Sends the signals of the watchdog's thread from a thread of their own.

Receivers are code of users and may be slow. The thread that renews locks must not be.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery.utils.dispatch import Signal

__all__ = ["SignalDispatcher"]

_PATIENCE = 1.0  # seconds for which an ending process waits for receivers


class SignalDispatcher:
    """Sends signals from a thread of its own, in the order of ``dispatch``.

    The thread starts with the first signal that has a receiver. A forked child
    gets a new one.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._queue: queue.SimpleQueue[tuple[Signal, Any, dict[str, Any]] | None]
        self._queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def dispatch(self, *, signal: Signal, sender: Any, **named: Any) -> None:
        """Send a signal soon. Without receivers it costs nothing."""
        if not signal.receivers:
            return
        if self._pid != os.getpid():
            self._reset()
        self._queue.put((signal, sender, named))
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name="redlock-dispatcher", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Send the remaining signals, for a second at most, and end the thread.

        The next signal starts it again.
        """
        thread, self._thread = self._thread, None
        if thread and thread.is_alive() and self._pid == os.getpid():
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(_PATIENCE)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            signal, sender, named = entry
            signal.send(sender=sender, **named)
