"""A result backend that stores RETRY after the retry's own result, where possible."""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend

__all__ = ["LateRetries"]

_LONGEST = 3.0  # seconds; a retry that may run has run by then


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
