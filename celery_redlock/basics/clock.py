"""The only module that reads time or sleeps.

Every duration in the package is in seconds and every instant is monotonic,
except where a name ends in ``_ms`` or ``_us`` (beside Lua) or says ``wall``.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """The time that this package sees. Tests and the simulator bring their own."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""

    def wall(self) -> float:
        """Seconds since 1970. A hint for fences; no safety rests on it."""

    def sleep(self, seconds: float) -> None:
        """Pause the calling thread or greenlet."""


# The nodes' ttl goes on while a machine is suspended. A lease must not look valid to a
# laptop that slept through its end, so the clock has to count the suspended time. Not
# all clocks do: CLOCK_MONOTONIC stands still on Linux, and time.monotonic() on macOS.
_monotonic: Callable[[], float]
if sys.platform == "win32":
    _monotonic = time.perf_counter
else:
    _clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    _monotonic = functools.partial(time.clock_gettime, _clock)


class SystemClock:
    """The machine's clocks.

    ``monotonic`` counts since boot, with suspended time where the system offers
    that. Both readings are C functions, because every call of a task makes several.
    """

    __slots__ = ()

    monotonic = staticmethod(_monotonic)
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        """Pause; cooperative under gevent and eventlet when they patched it."""
        time.sleep(seconds)  # looked up late: they replace it


SYSTEM_CLOCK = SystemClock()
