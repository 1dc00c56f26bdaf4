"""List and strike out what keeps calls from being published, because a person says so.

A claim ends when its job begins, was revoked, or has expired. A job that was taken
out of its queue by hand tells nobody: its claim lasts for its ``claim_ttl``, unless it
is freed here. A cool-down is ended in the same way, by whoever cannot wait for it.

What is freed is what was shown: each node compares the job before it deletes.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.core.lease import Holder
from celery_redlock.core.probe import NodeSilent, each_node
from celery_redlock.core.scripts import FREE_CLAIM, GRANTED
from celery_redlock.core.survey import STEP, escaped, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.probe import Probe
    from celery_redlock.core.redlock import Redlock

__all__ = ["KINDS", "Reservation", "Reservations", "free_reservations", "reservations"]

KINDS = ("claim", "cooldown")
_MS = 1000


@dataclass(frozen=True, slots=True)
class Reservation:
    """A claim or a cool-down of one call.

    Attributes:
        key: The call.
        holder: The job, by ``task_id``; who published it, or who ran it.
        nodes: How many nodes name it.
        left: Seconds until the last of them forgets it; ``math.inf``: never.
    """

    key: str
    holder: Holder
    nodes: int
    left: float


@dataclass(frozen=True, slots=True)
class Reservations:
    """What was found.

    Attributes:
        kind: One of ``KINDS``.
        found: All of it, ordered by key.
        unseen: Nodes that could not be looked at, or not to the end, and why.
    """

    kind: str
    found: list[Reservation]
    unseen: dict[str, str]


def reservations(redlock: Redlock, kind: str, pattern: str = "*") -> Reservations:
    """Find claims or cool-downs on all nodes, in small steps.

    Args:
        redlock: The lock service.
        kind: One of ``KINDS``.
        pattern: Which calls; ``*``, ``?`` and ``[...]`` mean what they do in Redis.
    """
    head = f"{redlock.guard.prefix}:{kind}:"
    sightings: defaultdict[tuple[str, str], list[tuple[str, float]]]
    sightings = defaultdict(list)
    turn = threading.Lock()

    def look(probe: Probe) -> None:
        for names, replies in walk(probe, escaped(head) + pattern, "GET", "PTTL"):
            pairs = zip(names, replies[::2], replies[1::2], strict=True)
            for name, value, left in pairs:
                if isinstance(value, bytes):
                    text = value.decode(errors="replace")
                    call = name.decode(errors="replace").removeprefix(head)
                    seconds = left / _MS if left >= 0 else math.inf
                    with turn:
                        job = text.partition("\n")[0]
                        sightings[call, job].append((text, seconds))

    seen = each_node(redlock.addresses, look, timeout=redlock.timing.connect_timeout)
    found = [
        Reservation(
            key=call,
            holder=Holder.parse(on_nodes[0][0]),
            nodes=len(on_nodes),
            left=max(left for _, left in on_nodes),
        )
        for (call, _), on_nodes in sorted(sightings.items())
    ]
    return Reservations(kind, found, _silent(redlock, seen))


def free_reservations(
    redlock: Redlock, seen: Reservations
) -> tuple[int, dict[str, str]]:
    """Free on every node what was found.

    Returns:
        How many of them were still there, on any node; and the nodes that could not
        be asked, with the reason: what they have stays until it ends by itself.
    """
    head = f"{redlock.guard.prefix}:{seen.kind}:"
    calls = [
        ("EVAL", FREE_CLAIM.source, 1, head + one.key, one.holder.token)
        for one in seen.found
    ]

    def free(probe: Probe) -> set[int]:
        freed = set()
        for start in range(0, len(calls), STEP):
            replies = probe.ask(*calls[start : start + STEP])
            freed |= {
                start + i for i, reply in enumerate(replies) if reply == [GRANTED, 0]
            }
        return freed

    said = each_node(redlock.addresses, free, timeout=redlock.timing.connect_timeout)
    freed = [one for one in said if not isinstance(one, NodeSilent)]
    return len(set().union(*freed)), _silent(redlock, said)


def _silent(redlock: Redlock, said: Sequence[object]) -> dict[str, str]:
    return {
        label: str(one)
        for label, one in zip(redlock.labels, said, strict=True)
        if isinstance(one, NodeSilent)
    }
