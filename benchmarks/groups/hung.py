"""Acquire and release while one, or two, of five nodes hang (SIGSTOP)."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from benchmarks.runner import percentile
from celery_redlock import LockUnavailable
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Callable

NODE_TIMEOUT = 0.05  # seconds; the default here, and the same for the peers
_ROUNDS = 12


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the 50th and 99th percentiles with 0, 1 and 2 nodes hung."""
    rounds, count = (1, 100) if quick else (_ROUNDS, 500)
    times: dict[int, list[list[float]]] = {0: [], 1: [], 2: []}
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=NODE_TIMEOUT)
        redlock.check()
        _cycles(redlock, 100)
        for _ in range(rounds):
            for hung, series in times.items():
                for node in nodes.nodes[:hung]:
                    node.pause()
                _cycles(redlock, 5)  # they include the first time-out
                series.append(_cycles(redlock, count))
                for node in nodes.nodes[:hung]:
                    node.resume()
                _until_well(redlock)
        redlock.close()
        peers = {
            name: _peer(nodes, lock, 3 if quick else 10)
            for name, lock in (("redlock-py", _redlock_py), ("pottery", _pottery))
        }
    # The least disturbed round: on a busy machine the scheduler makes the tail.
    least = {hung: min(percentile(one, 0.99) for one in times[hung]) for hung in times}
    rows = [
        {
            "name": f"{hung} of 5",
            "p50_us": _middle([percentile(one, 0.5) for one in times[hung]]),
            "p99_us": p99 * 1e6,
            "p99_ratio": p99 / least[0],
        }
        for hung, p99 in least.items()
    ]
    return {"rows": rows, "peers_ms": peers}


def _middle(seconds: list[float]) -> float:
    """Return the median in microseconds."""
    return percentile(seconds, 0.5) * 1e6


def _cycles(redlock: Redlock, count: int) -> list[float]:
    found = []
    for number in range(count):
        began = time.perf_counter()
        with contextlib.suppress(LockUnavailable):  # its time counts, even if it fails
            redlock.release(redlock.acquire(f"hung:{number}"))
        found.append(time.perf_counter() - began)
    return found


def _until_well(redlock: Redlock) -> None:
    """Wait until all nodes vote again."""
    deadline = time.monotonic() + 10.0
    while len(redlock.check().ballot.votes) and time.monotonic() < deadline:
        if redlock.check().ballot.granted == len(redlock.labels):
            return
        time.sleep(0.05)


def _peer(
    nodes: DevNodes, make: Callable[[DevNodes], Callable[[str], None]], count: int
) -> float:
    """Return the median milliseconds of a cycle with one node hung."""
    cycle = make(nodes)
    cycle("warm")
    nodes.nodes[0].pause()
    found = []
    for number in range(count):
        began = time.perf_counter()
        with contextlib.suppress(Exception):  # its time counts, even if it fails
            cycle(f"hung:{number}")
        found.append(time.perf_counter() - began)
    nodes.nodes[0].resume()
    return percentile(found, 0.5) * 1000


def _impatient(url: str) -> redis.Redis:
    # With redis-py's own retries and time-outs a call would take many seconds.
    return redis.Redis.from_url(
        url, socket_timeout=NODE_TIMEOUT, retry=Retry(NoBackoff(), 0)
    )


def _redlock_py(nodes: DevNodes) -> Callable[[str], None]:
    import redlock  # noqa: PLC0415  (a peer)

    service = redlock.Redlock([_impatient(url) for url in nodes.urls], retry_count=1)

    def cycle(name: str) -> None:
        service.unlock(service.lock(name, 30_000))

    return cycle


def _pottery(nodes: DevNodes) -> Callable[[str], None]:
    import pottery  # noqa: PLC0415  (a peer)

    clients = {_impatient(url) for url in nodes.urls}

    def cycle(name: str) -> None:
        lock = pottery.Redlock(key=name, masters=clients, auto_release_time=30.0)
        lock.acquire(blocking=False)
        lock.release()

    return cycle
