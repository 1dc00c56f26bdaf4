"""A hundred threads that want one lock: the throughput, and the cost of a refusal."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

from benchmarks.runner import PATIENT
from celery_redlock import LockHeld
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

CROWD, HOLD = 100, 0.02  # seconds of work under the lock


def measure(*, quick: bool) -> dict[str, Any]:
    """Return a ratio of throughputs, and the round trips of a refusal."""
    crowd, rounds = (10, 1) if quick else (CROWD, 3)
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=PATIENT)
        redlock.check()
        ratios = []
        for number in range(rounds):
            alone = _one_after_the_other(redlock, crowd)
            ratios.append(alone / _all_at_once(redlock, f"crowd:{number}", crowd))
        losers = _losers(redlock, 50 if quick else 500)
        redlock.close()
    return {"crowd": crowd, "ratio": statistics.median(ratios), **losers}


def _job(redlock: Redlock, key: str, wait: float) -> None:
    lease = redlock.acquire(key, wait=wait)
    time.sleep(HOLD)
    redlock.release(lease)


def _one_after_the_other(redlock: Redlock, crowd: int) -> float:
    began = time.perf_counter()
    for number in range(crowd):
        _job(redlock, f"alone:{number}", 0)
    return time.perf_counter() - began


def _all_at_once(redlock: Redlock, key: str, crowd: int) -> float:
    threads = [
        threading.Thread(target=_job, args=(redlock, key, 60.0)) for _ in range(crowd)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _losers(redlock: Redlock, count: int) -> dict[str, float]:
    """Compare a refusal with a bare acquire, in turn."""
    held = redlock.acquire("losers")
    won, refused, sent = [], [], _Counting(redlock)
    for number in range(count):
        began = time.perf_counter()
        lease = redlock.acquire(f"winner:{number}")
        won.append(time.perf_counter() - began)
        redlock.release(lease)
        sent.start()
        began = time.perf_counter()
        try:
            redlock.acquire("losers")
        except LockHeld:
            refused.append(time.perf_counter() - began)
        sent.stop()
    redlock.release(held)
    return {
        "round_trips": sent.waited_for / count,
        "loser_us": statistics.median(refused) * 1e6,
        "winner_us": statistics.median(won) * 1e6,
    }


class _Counting:
    """Counts the requests whose replies are waited for."""

    def __init__(self, redlock: Redlock) -> None:
        self.waited_for = 0
        self._transport: Any = redlock.transport
        self._ask = redlock.transport.ask

    def start(self) -> None:
        """Start counting."""

        def ask(request: Any) -> None:
            self.waited_for += 1
            self._ask(request)

        self._transport.ask = ask

    def stop(self) -> None:
        """Stop counting."""
        del self._transport.ask
