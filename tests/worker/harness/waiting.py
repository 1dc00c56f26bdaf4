"""Wait for an event with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

__all__ = ["until"]


def until(event: Callable[[], T], seconds: float = 10.0, *, what: str = "") -> T:
    """Poll until the event's value is true, and return that value.

    Args:
        event: Called again and again; its first true value is the answer.
        seconds: How long to wait at most.
        what: What is waited for, for the error; default the last value seen.

    Raises:
        AssertionError: It did not become true in time.
    """
    deadline = time.monotonic() + seconds
    pause = 0.005
    while True:
        value = event()
        if value:
            return value
        if time.monotonic() >= deadline:
            message = f"waited {seconds:g} s in vain for {what or 'an event'}"
            raise AssertionError(f"{message}; last seen: {value!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
