"""The parts of the time of one acquire and release, in the calling thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.runner import PATIENT
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Callable

_US = 1_000_000


def measure(*, quick: bool) -> dict[str, Any]:
    """Return calls and microseconds for each part of a cycle."""
    count = 100 if quick else 5_000
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=PATIENT)
        redlock.check()
        _cycles(redlock, 200)
        broadcast: Any = redlock.transport
        send, recv = _Stopwatch(), _Stopwatch()
        for node in broadcast.nodes:
            connection = node._connection  # noqa: SLF001  (what is measured)
            connection.sock = _Timed(connection.sock, send=send, recv=recv)
        wait = _Stopwatch()
        broadcast._selector = _Timed(broadcast._selector, select=wait)  # noqa: SLF001
        began = time.perf_counter()
        _cycles(redlock, count)
        cycle = (time.perf_counter() - began) / count * _US
        redlock.close()
    parts = {
        "send: the kernel carries a packet to a node": send,
        "select: nothing to read yet, or what is there": wait,
        "recv: the kernel hands over a reply": recv,
    }
    found = {
        what: {"times": watch.times / count, "us": watch.seconds / count * _US}
        for what, watch in parts.items()
    }
    rest = cycle - sum(share["us"] for share in found.values())
    found["Python: all that this package does"] = {"times": 1, "us": rest}
    return {"cycle_us": cycle, "parts": found}


def _cycles(redlock: Redlock, count: int) -> None:
    for number in range(count):
        redlock.release(redlock.acquire(f"profile:{number}"))


class _Stopwatch:
    """The number of calls of a function, and their time."""

    def __init__(self) -> None:
        self.times = 0
        self.seconds = 0.0

    def around(self, do: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that also takes the time."""

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return do(*args)
            finally:
                self.seconds += time.perf_counter() - began
                self.times += 1

        return timed


class _Timed:
    """Wraps an object, and times some of its methods."""

    def __init__(self, inner: Any, **watches: _Stopwatch) -> None:
        self._inner = inner
        for name, watch in watches.items():
            setattr(self, name, watch.around(getattr(inner, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
