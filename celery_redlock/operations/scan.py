"""Lists what the nodes store: locks, claims and cool-downs, and keys that never expire.

All nodes are scanned at the same time and in small steps (``NodeClient.scan``), so that
tasks need not wait. A lock is *held* when a majority of the nodes names one holder.

The result is no snapshot. A lock that is taken or released meanwhile may be found on
some nodes only. The votes of an unreachable node are missing: a lock that needs one of
them for its majority is not listed as held.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from celery_redlock.core.lease import Holder
from celery_redlock.core.quorum import quorum_of
from celery_redlock.core.transport.client import each_node, escaped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.transport.client import NodeClient, PerNode

__all__ = ["Kind", "Scan", "SeenHolder", "keys_without_ttl", "scan"]

Kind = Literal["lock", "claim", "cooldown"]
"""The kinds of keys: each is a method of ``core.keys.Keys``."""

_MS = 1000
_NO_TTL, _GONE = -1, -2  # replies of PTTL


@dataclass(frozen=True, slots=True)
class SeenHolder:
    """A holder of a key, as the nodes that answered name it.

    Attributes:
        key: The name of the lock or call.
        holder: The holder, with the greatest fence on any node. For a claim or a
            cool-down: the job. Its token is empty if the value is not ours.
        votes: How many nodes name this holder.
        ttl_left: Seconds until fewer nodes than a majority name it, if the holder does
            not renew it; with fewer votes, until the last node forgets it.
            ``math.inf``: never.
    """

    key: str
    holder: Holder
    votes: int
    ttl_left: float


@dataclass(frozen=True, slots=True)
class Scan:
    """The keys of one kind on the nodes.

    Attributes:
        kind: What was scanned for.
        labels: The names of all nodes.
        unseen: Why nodes could not be read, or not to the end, by name.
        found: All holders, ordered by key.
        counts: How many keys each node has.
    """

    kind: Kind
    labels: tuple[str, ...]
    unseen: dict[str, str]
    found: list[SeenHolder]
    counts: dict[str, int]

    @property
    def quorum(self) -> int:
        """The number of nodes that are a majority."""
        return quorum_of(len(self.labels))

    @property
    def has_quorum(self) -> bool:
        """Whether enough nodes answered to tell what is held."""
        return len(self.labels) - len(self.unseen) >= self.quorum

    @property
    def held(self) -> list[SeenHolder]:
        """The holders that a majority names."""
        quorum = self.quorum
        return [seen for seen in self.found if seen.votes >= quorum]

    @property
    def others(self) -> list[SeenHolder]:
        """The holders that fewer nodes name.

        Their keys are contended, left over, or held with votes of unreachable nodes.
        """
        quorum = self.quorum
        return [seen for seen in self.found if seen.votes < quorum]


def scan(redlock: Redlock, pattern: str = "*", kind: Kind = "lock") -> Scan:
    """List the locks, claims or cool-downs on all nodes.

    Args:
        redlock: The lock service.
        pattern: Which keys; ``*``, ``?`` and ``[...]`` mean what they mean in Redis.
        kind: What to list.
    """
    head = getattr(redlock.keys, kind)("")
    # Key -> value -> ms left on each node. Plain dicts, as there may be 100,000 keys.
    sightings: defaultdict[bytes, dict[bytes, list[int]]] = defaultdict(dict)
    counts = dict.fromkeys(redlock.labels, 0)
    texts: dict[bytes, bytes] = {}  # most values are the same on all nodes: keep one
    mutex = threading.Lock()

    def visit(client: NodeClient) -> None:
        known: set[bytes] = set()
        for keys, replies in client.scan(escaped(head) + pattern, "GET", "PTTL"):
            with mutex:
                for key, value, left in zip(
                    keys, replies[::2], replies[1::2], strict=True
                ):
                    if value is not None and left != _GONE and key not in known:
                        known.add(key)
                        # GET of a list or a hash is an error: the value is not ours.
                        text = value if isinstance(value, bytes) else b""
                        text = texts.setdefault(text, text)
                        sightings[key].setdefault(text, []).append(left)
                        counts[client.label] += 1

    timeout = redlock.timing.connect_timeout
    unseen = each_node(redlock.addresses, visit, timeout=timeout).unseen
    skip = len(head.encode())
    found = [
        holder
        for key, values in sorted(sightings.items())
        for holder in _holders(_text(key[skip:]), values, redlock.quorum)
    ]
    return Scan(kind, redlock.labels, unseen, found, counts)


def keys_without_ttl(redlock: Redlock) -> PerNode[list[str]]:
    """List keys under our prefix that should expire and have no ttl."""
    lasting = {redlock.keys.meta.encode()}
    pattern = escaped(f"{redlock.keys.prefix}:") + "*"

    def visit(client: NodeClient) -> list[str]:
        found = set()
        for keys, ttls in client.scan(pattern, "PTTL"):
            for key, left in zip(keys, ttls, strict=True):
                if left == _NO_TTL and key not in lasting:
                    found.add(_text(key))
        return sorted(found)

    timeout = redlock.timing.connect_timeout
    return each_node(redlock.addresses, visit, timeout=timeout)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _holders(
    key: str, values: dict[bytes, list[int]], quorum: int
) -> Iterator[SeenHolder]:
    # Values of one holder differ in the fence alone, if at all.
    by_token: dict[str, tuple[Holder, list[float]]] = {}
    for value, milliseconds in values.items():
        holder = Holder.parse(_text(value))
        ends = [math.inf if ms < 0 else float(ms) for ms in milliseconds]
        if holder.token in by_token:
            known, others = by_token[holder.token]
            holder = max(known, holder, key=lambda each: each.fence)
            ends += others
        by_token[holder.token] = holder, ends
    for holder, ends in by_token.values():
        ends.sort()
        end = ends[len(ends) - quorum] if len(ends) >= quorum else ends[-1]
        yield SeenHolder(key, holder, len(ends), end / _MS)
