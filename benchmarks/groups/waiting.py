"""The time from a release to the next waiter, and the load of waiting on the nodes."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

from benchmarks.runner import PATIENT
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

WAITERS, HOLD = 20, 0.02
_CALLS = ("cmdstat_eval", "cmdstat_evalsha")


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the delay of each hand-over, and commands per waiter and second."""
    idle = 1.0 if quick else 6.0
    hand_overs: list[float] = []
    with DevNodes(5) as nodes:
        for turn in range(1 if quick else 4):
            redlock = Redlock(nodes.urls, node_timeout=PATIENT)
            redlock.check()
            first = redlock.acquire(f"wait:{turn}")
            waiters = _Waiters(redlock, f"wait:{turn}")
            time.sleep(1.0)  # until all are in the wait queue
            before = _commands(nodes)
            time.sleep(idle)
            commands = (_commands(nodes) - before) / idle / WAITERS
            waiters.freed_at = time.perf_counter()
            redlock.release(first)
            hand_overs += waiters.finish()
            redlock.close()
    return {
        "waiters": WAITERS,
        "median_ms": statistics.median(hand_overs) * 1000,
        "most_ms": max(hand_overs) * 1000,
        "commands": commands,
    }


class _Waiters:
    """Threads that wait for one lock, hold it for a moment, and release it."""

    def __init__(self, redlock: Redlock, key: str) -> None:
        self.freed_at = 0.0
        self._redlock, self._key = redlock, key
        self._delays: list[float] = []
        self._threads = [threading.Thread(target=self._wait) for _ in range(WAITERS)]
        for thread in self._threads:
            thread.start()

    def _wait(self) -> None:
        lease = self._redlock.acquire(self._key, wait=60.0)
        self._delays.append(time.perf_counter() - self.freed_at)
        time.sleep(HOLD)
        self.freed_at = time.perf_counter()
        self._redlock.release(lease)

    def finish(self) -> list[float]:
        """Return the seconds from each release to the next acquisition."""
        for thread in self._threads:
            thread.join()
        return self._delays


def _commands(nodes: DevNodes) -> int:
    """Return the number of scripts that the nodes have run."""
    found = 0
    for node in nodes.nodes:
        stats = node.command("INFO", "commandstats")
        found += sum(int(stats[name]["calls"]) for name in _CALLS if name in stats)
    return found
