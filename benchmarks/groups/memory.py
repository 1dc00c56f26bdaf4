"""The memory of locks and fences on a node."""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from benchmarks.runner import PATIENT
from celery_redlock.devnodes import DevNode, DevNodes
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts.keys import STRIPES, stripe_of


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the bytes of a held lock without its key, and the bytes of all fences."""
    fills = (1_000, 2_000) if quick else (20_000, 40_000)
    with DevNodes(1) as nodes:
        redlock, node = (
            Redlock(nodes.urls, ttl=60, node_timeout=PATIENT),
            nodes.nodes[0],
        )
        redlock.check()
        keys = (f"fence:{number}" for number in itertools.count())
        missing = set(range(STRIPES))
        while missing:  # until every stripe of the fences exists
            key = next(keys)
            if stripe_of(key) in missing:
                missing.remove(stripe_of(key))
                redlock.release(redlock.acquire(key))
        fences = [_fences(node)]
        free, found, length = _used(node), [], 0
        held = 0
        for fill in fills:
            while held < fill:
                key = f"send_invoice:{secrets.token_hex(16)}"
                redlock.acquire(key)
                length, held = len(redlock.keys.lock(key)), held + 1
            found.append((_used(node) - free) / held - length)
        fences.append(_fences(node))
        redlock.close()
    return {
        "locks": list(fills),
        "bytes_per_lock": found,
        "most_bytes": max(found),
        "key_length": length,
        "fences_bytes": fences,
        "fences_ratio": fences[1] / fences[0],
    }


def _used(node: DevNode) -> int:
    return int(node.command("INFO", "memory")["used_memory_dataset"]) + int(
        node.command("INFO", "memory")["used_memory_overhead"]
    )


def _fences(node: DevNode) -> int:
    return int(node.command("MEMORY", "USAGE", "redlock:meta", "SAMPLES", 0))
