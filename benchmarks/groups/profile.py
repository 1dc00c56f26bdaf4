"""The parts of the time of one acquire and release, in the calling thread."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any

from benchmarks.runner import PATIENT
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Iterator

_US = 1_000_000


def measure(*, quick: bool) -> dict[str, Any]:
    """Return calls and microseconds for each part of a cycle."""
    count = 100 if quick else 5_000
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=PATIENT)
        redlock.check()
        _cycles(redlock, 200)
        send, recv, wait = _Stopwatch(), _Stopwatch(), _Stopwatch()
        with (
            _timed(socket.socket, "send", send),
            _timed(socket.socket, "recv", recv),
            _timed(selectors.DefaultSelector, "select", wait),
        ):
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


@contextlib.contextmanager
def _timed(owner: Any, name: str, watch: _Stopwatch) -> Iterator[None]:
    """Take the time of a method in this block."""
    method = getattr(owner, name)

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args)
        finally:
            watch.seconds += time.perf_counter() - began
            watch.times += 1

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, method)
