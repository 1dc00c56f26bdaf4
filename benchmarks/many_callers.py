"""Many callers of one process: cycles per second, of ours and of redis-py.

``python -m benchmarks.many_callers KIND COUNT SECONDS ROUNDS URL=NAME ...`` prints
the figures as JSON. KIND is ``threads``, ``greenlets`` or ``coroutines``. Each caller
acquires and releases a lock of its own, in a loop. Ours asks all nodes; redis-py's lock
asks the first one.
"""

from __future__ import annotations

import sys

if sys.argv[1:2] == ["greenlets"]:
    from gevent import monkey

    monkey.patch_all()

import asyncio
import json
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio

from benchmarks.runner import PATIENT, percentile
from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Callable

_TTL = 30.0  # seconds
_MOST_CONNECTIONS = 2000  # of redis-py: one for each caller at a time
Figures = dict[str, float]


def _run_threads(cycle: Callable[[str], object], count: int, seconds: float) -> Figures:
    cycles, times = [0] * count, list[float]()
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        while (began := time.perf_counter()) < end:
            cycle(f"many:{number}")
            times.append(time.perf_counter() - began)
            cycles[number] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _figures(cycles, times, seconds)


async def _run_coroutines(cycle: Any, count: int, seconds: float) -> Figures:
    cycles, times = [0] * count, list[float]()
    end = time.perf_counter() + seconds

    async def work(number: int) -> None:
        while (began := time.perf_counter()) < end:
            await cycle(f"many:{number}")
            times.append(time.perf_counter() - began)
            cycles[number] += 1

    await asyncio.gather(*[work(number) for number in range(count)])
    return _figures(cycles, times, seconds)


def _figures(cycles: list[int], times: list[float], seconds: float) -> Figures:
    """Return the throughput, the share of the slowest caller, and a percentile."""
    mean = sum(cycles) / len(cycles)
    return {
        "per_second": sum(cycles) / seconds,
        "least": min(cycles) / mean if mean else 0.0,
        "p99_ms": percentile(times, 0.99) * 1000,
    }


def _in_threads(
    redlock: Redlock, url: str, count: int, seconds: float
) -> tuple[Callable[[], Figures], Callable[[], Figures]]:
    peer = redis.Redis.from_url(url, max_connections=_MOST_CONNECTIONS)

    def ours(key: str) -> None:
        redlock.release(redlock.acquire(key))

    def theirs(key: str) -> None:
        lock = peer.lock(f"peer:{key}", timeout=_TTL)
        lock.acquire()
        lock.release()

    return (
        lambda: _run_threads(ours, count, seconds),
        lambda: _run_threads(theirs, count, seconds),
    )


def _in_coroutines(
    redlock: Redlock, url: str, count: int, seconds: float
) -> tuple[Callable[[], Figures], Callable[[], Figures]]:
    async def ours(key: str) -> None:
        await redlock.arelease(await redlock.aacquire(key))

    async def run_theirs() -> Figures:
        most = _MOST_CONNECTIONS
        peer = redis.asyncio.Redis.from_url(url, max_connections=most)

        async def theirs(key: str) -> None:
            lock = peer.lock(f"peer:{key}", timeout=_TTL)
            await lock.acquire()
            await lock.release()

        try:
            return await _run_coroutines(theirs, count, seconds)
        finally:
            await peer.aclose()

    return (
        lambda: asyncio.run(_run_coroutines(ours, count, seconds)),
        lambda: asyncio.run(run_theirs()),
    )


def main() -> None:
    """Measure ours and redis-py in turn, and print the medians."""
    kind, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    rounds, pairs = int(sys.argv[4]), [pair.split("=") for pair in sys.argv[5:]]
    nodes = [{"url": url, "name": name} for url, name in pairs]
    redlock = Redlock(nodes, node_timeout=PATIENT)
    redlock.check()
    make = _in_coroutines if kind == "coroutines" else _in_threads
    both = make(redlock, pairs[0][0], count, seconds)
    found: list[list[Figures]] = [[], []]
    for number in range(rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            found[index].append(both[index]())
    redlock.close()
    ours, theirs = found
    ratios = [a["per_second"] / b["per_second"] for a, b in zip(*found, strict=True)]
    print(  # noqa: T201  (read by the group)
        json.dumps(
            {
                "ours": statistics.median(one["per_second"] for one in ours),
                "redis_py": statistics.median(one["per_second"] for one in theirs),
                "ratio": statistics.median(ratios),
                "least": statistics.median(one["least"] for one in ours),
                "p99_ms": statistics.median(one["p99_ms"] for one in ours),
            }
        )
    )


if __name__ == "__main__":
    main()
