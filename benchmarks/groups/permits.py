"""Permits beside a lock: a grant with its release, and a refusal of a long list."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from benchmarks.runner import PATIENT, Contender, interleave, median_cost, ratio
from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import LockHeld
from celery_redlock.locks.limits import Limit
from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.locks.limits import Limits

FEW, MANY = 10, 100
_HOLD = 60.0  # seconds; longer than all refusals take


def measure(*, quick: bool) -> dict[str, dict[str, float]]:
    """Return the costs of grants and of refusals, beside those of a lock."""
    rounds, count = (2, 40) if quick else (31, 200)
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=PATIENT)
        redlock.check()
        pids = [node.pid for node in nodes.nodes]
        grants = [
            Contender("lock", 5, _cycles(redlock), count),
            Contender("permit", 5, _cycles(redlock, FEW), count),
        ]
        refusals = [
            Contender("lock", 5, _refusals(redlock, "lock"), count),
            Contender("permit", 5, _refusals(redlock, "permits", MANY), count),
        ]
        costs = {
            "granted": interleave(grants, rounds=rounds, pids=pids),
            "refused": interleave(refusals, rounds=rounds, pids=pids),
        }
        redlock.close()
    return {
        name: {
            "lock_us": median_cost(of["lock"]).wall,
            "permit_us": median_cost(of["permit"]).wall,
            "wall_ratio": ratio(of["permit"], of["lock"]),
            "cpu_ratio": ratio(of["permit"], of["lock"], "cpu"),
            "servers_ratio": ratio(of["permit"], of["lock"], "servers"),
        }
        for name, of in costs.items()
    }


def _limits(key: str, most: int) -> Limits:
    return (Limit(key, most),) if most > 1 else ()


def _cycles(redlock: Redlock, most: int = 1) -> Callable[[int], None]:
    """Return a function that takes and releases; each time another key."""
    numbers = itertools.count()

    def run(count: int) -> None:
        for number in itertools.islice(numbers, count):
            key = f"granted:{most}:{number}"
            redlock.release(redlock.acquire(key, limits=_limits(key, most)))

    return run


def _refusals(redlock: Redlock, key: str, most: int = 1) -> Callable[[int], None]:
    """Hold the key, and return a function that is refused so often."""
    limits = _limits(key, most)
    for _ in range(most):
        redlock.acquire(key, ttl=_HOLD, limits=limits)

    def run(count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(LockHeld):
                redlock.acquire(key, limits=limits)

    return run
