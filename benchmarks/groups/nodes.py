"""The cost of one more node."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.runner import PATIENT, slope
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

SIZES = (1, 3, 5, 7, 9)
_US = 1_000_000


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the client's CPU time for one acquire with 1, 3, 5, 7, 9 nodes."""
    rounds, count = (2, 40) if quick else (15, 150)
    cpu: dict[int, list[float]] = {size: [] for size in SIZES}
    wall: dict[int, list[float]] = {size: [] for size in SIZES}
    deployments = {size: DevNodes(size) for size in SIZES}
    services = {}
    try:
        for size, nodes in deployments.items():
            nodes.start()
            services[size] = Redlock(nodes.urls, node_timeout=PATIENT)
            services[size].check()
            _round(services[size], count)
        for _ in range(rounds):
            for size, redlock in services.items():
                used, took = _round(redlock, count)
                cpu[size].append(used)
                wall[size].append(took)
    finally:
        for redlock in services.values():
            redlock.close()
        for nodes in deployments.values():
            nodes.stop()
    middle = {size: statistics.median(found) for size, found in cpu.items()}
    return {
        "cpu_us": middle,
        "wall_us": {size: statistics.median(found) for size, found in wall.items()},
        "cpu_us_per_node": slope({float(size): cost for size, cost in middle.items()}),
    }


def _round(redlock: Redlock, count: int) -> tuple[float, float]:
    """Return the CPU and wall time of one acquire in µs; releases do not count."""
    used, began = time.process_time(), time.perf_counter()
    leases = [redlock.acquire(f"nodes:{number}") for number in range(count)]
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    for lease in leases:
        redlock.release(lease)
    return cpu / count * _US, wall / count * _US
