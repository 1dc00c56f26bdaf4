"""Acquire and release two keys together, compared with one key."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from benchmarks.runner import PATIENT, Contender, interleave, median_cost, ratio
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Callable

_ONE, _TWO = "one key", "two keys"


def measure(*, quick: bool) -> dict[str, float]:
    """Return the times of both, and the ratios of two keys to one."""
    rounds, count = (2, 40) if quick else (41, 200)
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=PATIENT)
        redlock.check()
        contenders = [
            Contender(name, 5, _cycles(redlock, number), count)
            for number, name in enumerate((_ONE, _TWO), start=1)
        ]
        pids = [node.pid for node in nodes.nodes]
        costs = interleave(contenders, rounds=rounds, pids=pids)
        redlock.close()
    one, two = costs[_ONE], costs[_TWO]
    return {
        "one_us": median_cost(one).wall,
        "two_us": median_cost(two).wall,
        "wall_ratio": ratio(two, one),
        "cpu_ratio": ratio(two, one, "cpu"),
        "servers_ratio": ratio(two, one, "servers"),
    }


def _cycles(redlock: Redlock, keys: int) -> Callable[[int], None]:
    """Return a function that takes and releases so many keys; each time other ones."""
    numbers = itertools.count()

    def run(count: int) -> None:
        for number in itertools.islice(numbers, count):
            wanted = [f"account:{keys}:{number}:{place}" for place in range(keys)]
            redlock.release(redlock.acquire(wanted))

    return run
