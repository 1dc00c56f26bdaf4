"""Result backends that store what they are given later than usual, where possible."""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import current_task, states
from celery.backends.redis import RedisBackend

from tests.worker.project.body import stage

__all__ = ["LateResults", "LateRetries"]

_LONGEST = 3.0  # seconds; a retry that may run has run by then
_COPY_COMES_WITHIN = 30.0  # seconds


class LateRetries(RedisBackend):
    """Stores RETRY of a run after the retry of that run has stored its result.

    If the retry cannot run so early, the backend stores RETRY after a few seconds.
    """

    def _set_with_state(self, key: bytes, value: str, state: str) -> Any:
        until = time.monotonic() + _LONGEST
        while state == states.RETRY and time.monotonic() < until:
            stored = self.get(key)
            if stored and self.decode_result(stored)["status"] == states.SUCCESS:
                break
            threading.Event().wait(0.01)
        return super()._set_with_state(key, value, state)


class LateResults(RedisBackend):
    """Stores a result when a copy of the call has the lock after it.

    The key of the lock is the first argument of the call.
    """

    def _set_with_state(self, key: bytes, value: str, state: str) -> Any:
        until = time.monotonic() + _COPY_COMES_WITHIN
        while state == states.SUCCESS and time.monotonic() < until:
            if len(stage().notes(current_task.request.args[0], "signal-acquired")) > 1:
                break
            threading.Event().wait(0.01)
        return super()._set_with_state(key, value, state)
