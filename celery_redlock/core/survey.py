"""List the locks of all nodes without getting in anybody's way.

Every node is walked with SCAN, a few hundred keys at a time, and serves others in
between. All nodes are walked at the same time. A lock is *held* when a majority of
the nodes names the same holder.

Nothing stands still meanwhile: a lock that was taken or released during the walk may
have been seen on some nodes and not on others. And a node that cannot be reached
takes its knowledge with it: what it alone would make a majority is not called held.
"""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.core.ballot import quorum_of
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import Holder
from celery_redlock.core.probe import NodeSilent, each_node
from celery_redlock.core.wire import ErrorReply

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.core.address import NodeAddress
    from celery_redlock.core.probe import Probe

__all__ = [
    "STEP",
    "SeenLock",
    "Survey",
    "escaped",
    "eternal_keys",
    "survey",
    "walk",
]

STEP = 250  # keys for a node to look at in one go
_PAUSE = 0.001  # seconds after each step: where nodes share cores, others get in
_MS = 1000
_NO_TTL, _GONE = -1, -2  # as PTTL says it

# Value -> ms left, on each node. Of a hundred thousand keys each container counts.
_Sightings = dict[bytes, list[int]]


@dataclass(frozen=True, slots=True)
class SeenLock:
    """One holder of one key, as the nodes that could be seen name it.

    Attributes:
        key: The name that is locked.
        holder: Who has it, with the greatest of the nodes' fences. Its token is
            empty where somebody else's value is in the lock's place.
        votes: How many nodes name this holder.
        ttl_left: Seconds until a majority no longer names it, or where it has none,
            the last node; if nobody renews it. ``math.inf``: for ever.
    """

    key: str
    holder: Holder
    votes: int
    ttl_left: float


@dataclass(frozen=True, slots=True)
class Survey:
    """What the nodes hold.

    Attributes:
        labels: The nodes.
        unseen: Those that could not be looked at, or not to the end, and why.
        locks: All that was seen, ordered by key.
        counts: How many locks each node has.
    """

    labels: tuple[str, ...]
    unseen: dict[str, str]
    locks: list[SeenLock]
    counts: dict[str, int]

    @property
    def quorum(self) -> int:
        """How many nodes are a majority."""
        return quorum_of(len(self.labels))

    @property
    def has_quorum(self) -> bool:
        """Whether enough nodes were seen to tell what is held."""
        return len(self.labels) - len(self.unseen) >= self.quorum

    @property
    def held(self) -> list[SeenLock]:
        """The locks of which a majority says so."""
        quorum = self.quorum
        return [lock for lock in self.locks if lock.votes >= quorum]

    @property
    def others(self) -> list[SeenLock]:
        """What fewer nodes name: contended for, left over, or held by the unseen."""
        quorum = self.quorum
        return [lock for lock in self.locks if lock.votes < quorum]


def survey(
    addresses: Sequence[NodeAddress], prefix: str, pattern: str = "*", *, timeout: float
) -> Survey:
    """List the locks on these nodes.

    Args:
        addresses: The nodes.
        prefix: Of all keys on them.
        pattern: Which locks; ``*``, ``?`` and ``[...]`` mean what they do in Redis.
        timeout: Seconds to connect to a node, and to wait for each of its answers.
    """
    head = f"{prefix}:lock:"
    sightings: defaultdict[bytes, _Sightings] = defaultdict(dict)
    counts = dict.fromkeys((address.name for address in addresses), 0)
    texts: dict[bytes, bytes] = {}  # as a rule all nodes have the same: keep it once
    turn = threading.Lock()

    def look(probe: Probe) -> None:
        known: set[bytes] = set()  # a walk may come to a key twice
        for keys, replies in walk(probe, escaped(head) + pattern, "GET", "PTTL"):
            with turn:
                for key, value, left in zip(
                    keys, replies[::2], replies[1::2], strict=True
                ):
                    if value is not None and left != _GONE and key not in known:
                        known.add(key)
                        # An error is no text: it is a hash or a list of somebody's.
                        text = value if isinstance(value, bytes) else b""
                        text = texts.setdefault(text, text)
                        sightings[key].setdefault(text, []).append(left)
                        counts[probe.label] += 1

    unseen = _unseen(addresses, each_node(addresses, look, timeout=timeout))
    labels = tuple(address.name for address in addresses)
    skip, quorum = len(head.encode()), quorum_of(len(labels))
    locks = [
        lock
        for key, seen in sorted(sightings.items())
        for lock in _locks_of(_text(key[skip:]), seen, quorum)
    ]
    return Survey(labels, unseen, locks, counts)


def eternal_keys(
    addresses: Sequence[NodeAddress], prefix: str, *, timeout: float
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Find keys of ours that never end though they should: locks that nobody frees.

    Returns:
        Their names on each node that has such, and the nodes that could not be
        looked at with the reason.
    """
    lasting = {f"{prefix}:fence".encode(), f"{prefix}:meta".encode()}

    def look(probe: Probe) -> list[str]:
        found = set()
        for keys, replies in walk(probe, escaped(f"{prefix}:") + "*", "PTTL"):
            for key, left in zip(keys, replies, strict=True):
                if left == _NO_TTL and key not in lasting:
                    found.add(_text(key))
        return sorted(found)

    seen = each_node(addresses, look, timeout=timeout)
    found = {
        address.name: keys
        for address, keys in zip(addresses, seen, strict=True)
        if keys and not isinstance(keys, NodeSilent)
    }
    return found, _unseen(addresses, seen)


def walk(
    probe: Probe, match: str, *verbs: str
) -> Iterator[tuple[list[bytes], list[Any]]]:
    """Yield the keys of a node in small portions, with what the verbs say of each.

    Args:
        probe: The node.
        match: A pattern for SCAN.
        verbs: Commands that take a key and nothing else. Replies come key by key.

    Raises:
        NodeSilent: It stopped answering, or may not be walked by us.
    """
    # Many thousands of commands are packed by hand, but for the key.
    heads = [b"*2\r\n$%d\r\n%b\r\n" % (len(v), v.encode()) for v in verbs]
    heads = [head + b"$%d\r\n%b\r\n" for head in heads]
    cursor = b"0"
    while True:
        (said,) = probe.ask(("SCAN", cursor, "MATCH", match, "COUNT", STEP))
        if isinstance(said, ErrorReply):
            raise NodeSilent(f"does not list its keys: {said}")
        cursor, keys = said
        if keys:
            packed = b"".join(
                [head % (len(key), key) for key in keys for head in heads]
            )
            yield keys, probe.converse(packed, len(keys) * len(verbs))
        if cursor == b"0":
            return
        SYSTEM_CLOCK.sleep(_PAUSE)


def escaped(text: str) -> str:
    """Return a pattern that means this very text."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _unseen(addresses: Sequence[NodeAddress], seen: Sequence[Any]) -> dict[str, str]:
    return {
        address.name: str(outcome)
        for address, outcome in zip(addresses, seen, strict=True)
        if isinstance(outcome, NodeSilent)
    }


def _locks_of(key: str, seen: _Sightings, quorum: int) -> Iterator[SeenLock]:
    # Values of one holder differ in the fence alone, if they do.
    by_token: dict[str, tuple[Holder, list[float]]] = {}
    for value, milliseconds in seen.items():
        holder = Holder.parse(_text(value))
        lefts = [math.inf if ms < 0 else float(ms) for ms in milliseconds]
        if holder.token in by_token:
            known, others = by_token[holder.token]
            holder = max(known, holder, key=lambda each: each.fence)
            lefts += others
        by_token[holder.token] = holder, lefts
    for holder, lefts in by_token.values():
        lefts.sort()
        end = lefts[len(lefts) - quorum] if len(lefts) >= quorum else lefts[-1]
        yield SeenLock(key, holder, len(lefts), end / _MS)
