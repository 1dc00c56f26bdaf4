"""Many at once: threads, greenlets and coroutines of one process, on a network."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

from benchmarks.delay import delayed
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.redlock import Redlock

DELAYS_MS = (0.0, 0.5, 1.0)  # each way
CALLERS = (
    *[("threads", count) for count in (1, 4, 16, 64)],
    ("greenlets", 500),
    ("coroutines", 1000),
)
_LONGEST = 120.0  # seconds for one row


def measure(*, quick: bool) -> dict[str, Any]:
    """Return a row for each kind and number of callers, and each delay."""
    seconds, rounds = (0.2, 1) if quick else (1.5, 3)
    rows = []
    with DevNodes(5) as nodes:
        for ms in (0.0, 1.0) if quick else DELAYS_MS:
            ports = [urlsplit(url).port or 0 for url in nodes.urls]
            with delayed(ports, ms / 1000) as fronts:
                for kind, count in CALLERS:
                    row = _row(nodes, fronts, kind, count, seconds, rounds)
                    place = f"{ms:g} ms each way" if ms else "loopback"
                    name = f"{count} {kind}, {place}"
                    rows.append(
                        {"name": name, "kind": kind, "count": count, "ms": ms, **row}
                    )
    with DevNodes(5) as nodes:
        ports = [urlsplit(url).port or 0 for url in nodes.urls]
        healthy = _row(nodes, ports, "threads", 64, seconds, rounds)
        nodes.nodes[4].pause()  # redis-py's lock is on the first one
        hung = _row(nodes, ports, "threads", 64, seconds, rounds)
        nodes.nodes[4].resume()
    return {"rows": rows, "hung_p99": hung["p99_ms"] / healthy["p99_ms"]}


def _row(  # noqa: PLR0913, PLR0917  (read from the command line of a program)
    nodes: DevNodes,
    ports: list[int],
    kind: str,
    count: int,
    seconds: float,
    rounds: int,
) -> dict[str, float]:
    pairs = [
        f"redis://127.0.0.1:{port}/0={name}"
        for port, name in zip(ports, Redlock(nodes.urls).labels, strict=True)
    ]
    numbers = [str(count), str(seconds), str(rounds)]
    done = subprocess.run(  # noqa: S603  (this program)
        [sys.executable, "-m", "benchmarks.many_callers", kind, *numbers, *pairs],
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{count} {kind} failed: {done.stderr[-2000:]}")
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row
