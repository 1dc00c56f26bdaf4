"""A result backend that is overtaken wherever that is possible."""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend

__all__ = ["LateRetries"]

_LONGEST = 3.0  # seconds in which a retry that may run has run


class LateRetries(RedisBackend):
    """Stores that a run is to be retried after the retry has stored its result.

    Where the retry cannot run before, it stores after a while.
    """

    def _set_with_state(self, key: bytes, value: str, state: str) -> Any:
        until = time.monotonic() + _LONGEST
        while state == states.RETRY and time.monotonic() < until:
            stored = self.get(key)
            if stored and self.decode_result(stored)["status"] == states.SUCCESS:
                break
            threading.Event().wait(0.01)
        return super()._set_with_state(key, value, state)
