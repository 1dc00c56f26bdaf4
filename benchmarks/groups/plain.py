"""Acquire and release without hiredis, which is optional."""

from __future__ import annotations

import sys
from typing import Any


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the ratios to redis-py's Lock, both in pure Python."""
    sys.modules["hiredis"] = None  # type: ignore[assignment]
    import redis  # noqa: PLC0415  (after the line above)

    from benchmarks.contenders import ours, redis_py  # noqa: PLC0415
    from benchmarks.runner import (  # noqa: PLC0415
        PATIENT,
        interleave,
        median_cost,
        ratio,
    )
    from celery_redlock.devnodes import DevNodes  # noqa: PLC0415
    from celery_redlock.locks.redlock import Redlock  # noqa: PLC0415

    rounds, count = (2, 40) if quick else (15, 150)
    with DevNodes(5) as nodes:
        redlock = Redlock(nodes.urls, node_timeout=PATIENT)
        redlock.check()
        client = redis.Redis.from_url(nodes.urls[0])
        us, them = ours(redlock, count), redis_py(client, count)
        costs = interleave([us, them], rounds=rounds)
        redlock.close()
    first, second = costs[us.name], costs[them.name]
    return {
        "wall_us": median_cost(first).wall,
        "cpu_us": median_cost(first).cpu,
        "their_wall_us": median_cost(second).wall,
        "their_cpu_us": median_cost(second).cpu,
        "wall_ratio": ratio(first, second),
        "cpu_ratio": ratio(first, second, "cpu"),
    }
