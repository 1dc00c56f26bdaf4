"""Ten thousand leases in one process, and four times as many.

The benchmark calls the watchdog's ``step`` itself, and moves its clock by a third of
the ttl. So all leases are due at the same moment, which is the worst case. A third row
has ten thousand leases again, while 64 threads of the process acquire and release.
"""

from __future__ import annotations

import contextlib
import gc
import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import PATIENT, servers_cpu
from celery_redlock.basics.clock import SystemClock
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import RENEW_AT, Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.locks.lease import Lease

TTL = 60.0  # seconds: no lease ends during the measurement
_TICKS = 5
_THREADS = 64
_SOON = 0.1  # seconds: a step that is due later is the next renewal


def measure(*, quick: bool) -> dict[str, Any]:
    """Return time and memory for one renewal of few and of many leases."""
    with DevNodes(5) as nodes:
        pids = [node.pid for node in nodes.nodes]
        sizes = (500, 1_000) if quick else (10_000, 40_000)
        found = {size: hold(nodes.urls, pids, size) for size in sizes}
        goal, most = sizes
        busy = hold(nodes.urls, pids, goal, threads=_THREADS)
    return {"goal": found[goal], "most": found[most], "busy": busy}


def hold(
    urls: Sequence[str], pids: list[int], size: int, *, threads: int = 0
) -> dict[str, Any]:
    """Take so many leases on these nodes, and renew all of them a few times.

    Args:
        urls: The nodes.
        pids: The processes of the servers.
        size: How many leases.
        threads: How many threads acquire and release meanwhile.
    """
    clock = _Clock()
    redlock = Redlock(urls, ttl=TTL, node_timeout=PATIENT, clock=clock)
    redlock.check()
    watchdog = _Hand(redlock)
    keys = [f"lease:{size}:{number}" for number in range(size)]
    gc.collect()
    before = _rss()
    began, served = time.perf_counter(), servers_cpu(pids)
    leases = [redlock.acquire(key) for key in keys]
    took, granting = time.perf_counter() - began, servers_cpu(pids) - served
    for lease in leases:
        watchdog.watch(lease)
    ticks = []
    for _ in range(_TICKS):
        clock.ahead += TTL * RENEW_AT  # before the threads: none may seem to wait
        with _callers(redlock, threads):
            ticks.append(_tick(watchdog, clock, leases, pids))
    gc.collect()
    weight = (_rss() - before) / size
    lost = sum(not lease.is_valid() for lease in leases)
    for lease in leases:
        watchdog.forget(lease)
        redlock.release(lease)
    redlock.close()
    best = min(ticks)
    return {
        "leases": size,
        "threads": threads,
        "wall_s": best[0],
        "wall_ms": best[0] * 1000,
        "cpu_s": best[1],
        "cpu_ms": best[1] * 1000,
        "servers_us_per_renewal": best[2] / size / len(urls) * 1e6,
        "servers_us_per_grant": granting / size / len(urls) * 1e6,
        "grant_us": took / size * 1e6,
        "bytes_per_lease": weight,
        "kb_per_lease": weight / 1000,
        "lost": lost,
    }


@contextlib.contextmanager
def _callers(redlock: Redlock, count: int) -> Iterator[None]:
    """Let so many threads acquire and release, each a lock of its own."""
    stopped = threading.Event()

    def call(key: str) -> None:
        while not stopped.is_set():
            redlock.release(redlock.acquire(key))

    threads = [
        threading.Thread(target=call, args=(f"caller:{number}",))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


class _Clock(SystemClock):
    """The machine's clock plus an offset."""

    __slots__ = ("ahead",)

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        """Return seconds since boot, plus the offset."""
        return super().monotonic() + self.ahead


class _Hand(Watchdog):
    """A watchdog without its thread."""

    def start(self) -> bool:
        """Start no thread, and say that there is one."""
        return True


def _tick(
    watchdog: Watchdog, clock: _Clock, leases: list[Lease], pids: list[int]
) -> tuple[float, float, float]:
    """Renew all leases now. Return wall, client and server seconds."""
    before = [lease.until for lease in leases]
    served, used, began = servers_cpu(pids), time.process_time(), time.perf_counter()
    left = leases
    while left:
        while (watchdog.step() or math.inf) < clock.monotonic() + _SOON:
            pass
        left = [
            lease for a, lease in zip(before, leases, strict=True) if lease.until <= a
        ]
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    return wall, cpu, servers_cpu(pids) - served


def _rss() -> int:
    """Return the memory of this process in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
