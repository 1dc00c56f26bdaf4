"""Recognize the thread in which beat publishes the calls of a schedule.

Beat logs any exception of a call that it publishes as an error, with two tracebacks. A
duplicate of a call that still waits or runs is none: at each tick it would be logged
so. In this thread a duplicate is therefore skipped, with one line, where another caller
gets ``DuplicateTask``.
"""

from __future__ import annotations

import threading

from celery import signals

_thread = threading.local()


def is_beat() -> bool:
    """Tell whether this thread is the one of a beat."""
    return bool(getattr(_thread, "is_beat", False))


def _when_beat_begins(**_: object) -> None:
    _thread.is_beat = True


signals.beat_init.connect(_when_beat_begins, weak=False)
