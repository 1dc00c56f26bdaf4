"""Waiting for an event with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(event: Callable[[], T], seconds: float = 60.0, *, what: str = "") -> T:
    """Poll an event until its value is true, and return this value.

    Args:
        event: Returns the value.
        seconds: After how long the event will not come any more. It is no measurement:
            a busy machine takes long.
        what: The name of the event in the error.

    Raises:
        AssertionError: The value did not become true in time.
    """
    deadline = time.monotonic() + seconds
    pause = 0.005
    while True:
        value = event()
        if value:
            return value
        if time.monotonic() >= deadline:
            message = (
                f"waited {seconds:g} s for {what or 'an event'}, and it did not come"
            )
            raise AssertionError(f"{message}; last seen: {value!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
