"""Lists what the nodes store: locks, claims and cool-downs, and keys that never expire.

All nodes are scanned at the same time and in small steps (``NodeClient.scan``), so that
tasks need not wait. A lock is *held* when a majority of the nodes names one holder.

The result is no snapshot. A lock that is taken or released meanwhile may be found on
some nodes only. Some nodes cannot tell what is held: they are unreachable, may have
forgotten locks, or are set up differently. A lock that needs one of their votes for its
majority *may be* held.

A permit of a key with a limit is a lock, and its value says so. A permit for a start is
none: it is kept for its period, whether its run has ended or not.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from celery_redlock.basics.glob import escaped
from celery_redlock.basics.timing import seconds_text
from celery_redlock.locks.lease import Holder, family_of
from celery_redlock.locks.limits import MOST_PERMITS, Limit
from celery_redlock.operations.inspect import (
    ANSWERS,
    Nodes,
    NodeState,
    NodeStatus,
    each_answering,
    is_held,
    lock_holder,
    node_status,
    text_in,
)
from celery_redlock.scripts import INSPECT, TAKEN
from celery_redlock.wire.requests import all_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_redlock.locks.limits import Limits
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.client import NodeClient, PerNode

Kind = Literal["lock", "claim", "cooldown"]
"""The kinds of keys: each is a method of ``scripts.keys.Keys``."""

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
        is_held: Whether the lock is held; None if that cannot be told.
    """

    key: str
    holder: Holder
    votes: int
    ttl_left: float
    is_held: bool | None

    @property
    def permit(self) -> tuple[Limit, int] | None:
        """The limit and the number of this permit; None for a plain lock."""
        return self.holder.permit(self.key)


@dataclass(frozen=True, slots=True)
class LimitInUse:
    """The permits of one limit that nodes have.

    Attributes:
        limit: The limit; of several that clients have, the greatest.
        permits: The permits that have a holder, by their numbers.
    """

    limit: Limit
    permits: list[SeenHolder]

    @property
    def in_use(self) -> int:
        """The number of permits that have a holder for certain."""
        return sum(seen.is_held is True for seen in self.permits)

    @property
    def may_be_more(self) -> bool:
        """Whether more permits may have a holder: too few nodes can tell."""
        return any(seen.is_held is None for seen in self.permits)

    @property
    def free(self) -> int:
        """The number of permits that have no holder for certain."""
        possible = sum(seen.is_held is None for seen in self.permits)
        return max(0, self.limit.most - self.in_use - possible)

    @property
    def is_full(self) -> bool:
        """Whether all permits have a holder."""
        return self.in_use >= self.limit.most

    @property
    def free_in(self) -> float:
        """The seconds until a permit ends, if it is not renewed; 0 if one is free."""
        if not self.is_full:
            return 0.0
        # Of holders with a greater limit there may be too many.
        ends = sorted(seen.ttl_left for seen in self.permits if seen.is_held)
        return ends[self.in_use - self.limit.most]

    def __str__(self) -> str:
        limit = self.limit
        number = f"{self.in_use} of {limit.most}"
        certain = " for certain" if self.may_be_more else ""
        if not limit.period:
            return f"{limit.key}: {number} permits in use{certain}."
        starts = f"{number} starts in {limit.period:g} s"
        text = f"{limit.key}: {starts} are taken{certain}."
        if math.isinf(self.free_in):
            return f"{text} Another one is possible when one is released."
        next_one = f" The next one is possible in {seconds_text(self.free_in)}."
        return text + next_one * self.is_full


@dataclass(frozen=True, slots=True)
class Scan:
    """The keys of one kind on the nodes.

    Attributes:
        found: All holders, ordered by key.
        counts: How many keys each node has.
    """

    kind: Kind
    pattern: str
    found: list[SeenHolder]
    counts: dict[str, int]
    nodes: Nodes

    @property
    def held(self) -> list[SeenHolder]:
        """The holders that a majority names. No permits for a start are among them."""
        return [seen for seen in self._locks if seen.is_held]

    @property
    def possible(self) -> list[SeenHolder]:
        """The holders that nodes which cannot tell may name, too."""
        return [seen for seen in self._locks if seen.is_held is None]

    @property
    def starts(self) -> list[SeenHolder]:
        """The permits for a start that are kept, or may be."""
        return [s for s in self.found if s.holder.is_kept and s.is_held is not False]

    @property
    def limits(self) -> list[LimitInUse]:
        """The limits of which all permits were scanned for, the fullest first."""
        stem = self.pattern.removesuffix("*")
        is_whole = stem != self.pattern
        found = _limits_in_use(self.found)
        return [one for one in found if is_whole and one.limit.key.startswith(stem)]

    @property
    def _locks(self) -> list[SeenHolder]:
        return [seen for seen in self.found if not seen.holder.is_kept]

    @property
    def others(self) -> list[SeenHolder]:
        """The holders that too few nodes name: contended keys, or left over."""
        return [seen for seen in self.found if seen.is_held is False]


def scan(
    redlock: Redlock,
    pattern: str = "*",
    kind: Kind = "lock",
    *,
    names: Iterable[str] = (),
    nodes: Nodes | None = None,
) -> Scan:
    """List the locks, claims or cool-downs on all nodes.

    In a pattern, ``*``, ``?`` and ``[...]`` mean what they mean in Redis. If all names
    that it can find are known and given, a server is asked for these, and does not look
    through all keys of its database. ``nodes`` are the nodes, from before.
    """
    head = getattr(redlock.keys, kind)("")
    wanted = [f"{head}{name}".encode(errors="replace") for name in names]
    sightings, skip = _Sightings(), len(head.encode())
    counts = dict.fromkeys(redlock.labels, 0)
    mutex = threading.Lock()

    # Before the keys: what a node may have forgotten has ended when it votes.
    nodes = nodes or node_status(redlock)
    by_label = {node.label: (node, nodes.counts(node)) for node in nodes}

    def visit(client: NodeClient) -> None:
        known: set[bytes] = set()
        node, is_vote = by_label[client.label]
        told = (
            client.look_up(wanted, "GET", "PTTL")
            if wanted and not client.is_store
            else client.scan(escaped(head) + pattern, "GET", "PTTL")
        )
        for keys, replies in told:
            with mutex:
                for key, value, left in zip(
                    keys, replies[::2], replies[1::2], strict=True
                ):
                    if value is not None and left != _GONE and key not in known:
                        known.add(key)
                        # GET of a list or a hash is an error: the value is not ours.
                        text = value if isinstance(value, bytes) else b""
                        sightings.add(key[skip:], text, left, node, is_vote=is_vote)
        counts[client.label] = len(known)

    visited = each_answering(redlock, visit, nodes)
    statuses = [
        replace(node, state=NodeState.SILENT, reason=visited.unseen[node.label])
        if node.label in visited.unseen
        else node
        for node in nodes
    ]
    nodes = replace(nodes, statuses=statuses)
    parse = lock_holder if kind == "lock" else Holder.parse
    found = sightings.holders(len(nodes) - nodes.can_tell, redlock.quorum, parse)
    return Scan(kind, pattern, found, counts, nodes)


def locks_of(redlock: Redlock, base: str, pid: int | None) -> dict[str, set[Holder]]:
    """Return the locks of an execution and of its body, on any node, by their names.

    The execution has this base, and ran in the process ``pid``. No permits for a start
    are among them: these end by themselves. A process that the body has forked may have
    locks of its family, and may be alive.
    """
    head, family = redlock.keys.lock(""), family_of(base).encode()

    def visit(client: NodeClient) -> list[tuple[str, Holder]]:
        return [
            (text_in(key[len(head.encode()) :]), lock_holder(text_in(value)))
            for keys, values in client.scan(f"{escaped(head)}*", "GET")
            for key, value in zip(keys, values, strict=True)
            if isinstance(value, bytes) and value.startswith(family)
        ]

    found: defaultdict[str, set[Holder]] = defaultdict(set)
    for holders in each_answering(redlock, visit).results.values():
        for name, holder in holders:
            if not holder.is_kept and (holder.base == base or holder.pid == pid):
                found[name].add(holder)
    return found


def _limits_in_use(found: Iterable[SeenHolder]) -> list[LimitInUse]:
    """Return the limits of these permits, the fullest first.

    A plain lock of a key that has a limit for other clients counts: it is the first
    permit.
    """
    locks: dict[str, SeenHolder] = {}
    limits: dict[str, Limit] = {}
    permits: defaultdict[str, list[tuple[int, SeenHolder]]] = defaultdict(list)
    for seen in found:
        if seen.is_held is False:
            continue
        if permit := seen.permit:
            limit, number = permit
            limits[limit.head] = max(limit, limits.get(limit.head, limit))
            permits[limit.head].append((number, seen))
        else:
            locks[seen.key] = seen
    for head, limit in limits.items():
        if limit.key in locks and not limit.period:
            permits[head].append((1, locks[limit.key]))
    known = [
        LimitInUse(
            limit, [seen for _, seen in sorted(permits[head], key=itemgetter(0))]
        )
        for head, limit in limits.items()
    ]
    return sorted(known, key=lambda one: -one.in_use / one.limit.most)


def inspect_limits(
    redlock: Redlock, limits: Limits, nodes: Nodes
) -> list[LimitInUse] | None:
    """Return the permits of these limits that have a holder, or may. Changes nothing.

    Asks for them by their names, in one request. None where no majority answered.
    ``nodes`` are the nodes, from before.
    """
    names = [name for limit in limits for name in limit.names()]
    request = redlock.nodes.ask(
        INSPECT, list(map(redlock.keys.lock, names)), done_when=all_answered
    )
    if request.ballot.answered < redlock.quorum:
        return None
    unsure = sum(
        not node.can_tell or vote is None or vote.kind not in ANSWERS
        for node, vote in zip(nodes, request.ballot.votes, strict=True)
    )
    sightings = _Sightings()
    for node, reply in zip(nodes, request.replies, strict=True):
        is_vote = nodes.counts(node)
        if isinstance(reply, list) and reply[0] == TAKEN:
            for name, value, left in zip(names, reply[1::2], reply[2::2], strict=True):
                if left != _GONE:
                    sightings.add(name.encode(), value, left, node, is_vote=is_vote)
    found: defaultdict[str, list[SeenHolder]] = defaultdict(list)
    for seen in sightings.holders(unsure, redlock.quorum, lock_holder):
        found[seen.key].append(seen)
    return [
        LimitInUse(limit, [seen for name in limit.names() for seen in found[name]])
        for limit in limits
    ]


def permits_of(redlock: Redlock, key: str, nodes: Nodes) -> list[LimitInUse]:
    """Return the limits of one key, each with the permits that have a holder.

    The limit of holders at once comes before that of starts. ``nodes`` are the nodes,
    from before.
    """
    most = Limit(key, MOST_PERMITS), Limit(key, MOST_PERMITS, period=1.0)
    names = [name for limit in most for name in limit.names()]
    seen = scan(redlock, f"{escaped(key)}*", names=names, nodes=nodes)
    found = _limits_in_use(seen.found)
    limits = (one for one in found if one.limit.key == key)
    return sorted(limits, key=lambda one: one.limit.period)


def other_permits(redlock: Redlock, key: str, nodes: Nodes) -> list[SeenHolder]:
    """Return the other permits of this key that are in use, or may be."""
    at_once = [one for one in permits_of(redlock, key, nodes) if not one.limit.period]
    return [seen for one in at_once for seen in one.permits if seen.key != key]


def keys_without_ttl(redlock: Redlock) -> PerNode[list[str]]:
    """List keys under our prefix that should expire and have no ttl."""
    lasting = {redlock.keys.meta.encode()}
    pattern = escaped(f"{redlock.keys.prefix}:") + "*"

    def visit(client: NodeClient) -> list[str]:
        found = set()
        for keys, ttls in client.scan(pattern, "PTTL"):
            for key, left in zip(keys, ttls, strict=True):
                if left == _NO_TTL and key not in lasting:
                    found.add(text_in(key))
        return sorted(found)

    return each_answering(redlock, visit)


class _Sightings:
    """The values of keys, and the milliseconds left of each on the nodes that have it.

    Plain dicts, as there may be 100,000 keys.
    """

    def __init__(self) -> None:
        self._left: defaultdict[bytes, dict[bytes, list[int]]] = defaultdict(dict)
        self._texts: dict[bytes, bytes] = {}  # most are the same on all nodes: keep one
        # How many nodes have a value of a key where it counts, although they cannot
        # tell; and how many where it does not.
        self._unsure: Counter[tuple[bytes, bytes]] = Counter()
        self._uncounted: Counter[tuple[bytes, bytes]] = Counter()

    def add(
        self, key: bytes, value: bytes, left: int, node: NodeStatus, *, is_vote: bool
    ) -> None:
        """Add the value that one node has, and whether it counts there."""
        value = self._texts.setdefault(value, value)
        self._left[key].setdefault(value, []).append(left)
        if not is_vote:
            self._uncounted[key, value] += 1
        elif not node.can_tell:
            self._unsure[key, value] += 1

    def holders(
        self, unsure: int, quorum: int, parse: Callable[[str], Holder]
    ) -> list[SeenHolder]:
        """Return the holders, ordered by key. ``unsure`` nodes cannot tell."""
        return [
            holder
            for key in sorted(self._left)
            for holder in self._holders_of(key, unsure, quorum, parse)
        ]

    def _holders_of(
        self, key: bytes, unsure: int, quorum: int, parse: Callable[[str], Holder]
    ) -> Iterator[SeenHolder]:
        # Values of one holder differ in the fence alone, if at all.
        by_token: dict[str, tuple[Holder, list[float], int, int]] = {}
        for value, milliseconds in self._left[key].items():
            holder, others = parse(text_in(value)), unsure - self._unsure[key, value]
            uncounted = self._uncounted[key, value]
            ends = [math.inf if ms < 0 else float(ms) for ms in milliseconds]
            if holder.token in by_token:
                known, ends_before, others_before, more = by_token[holder.token]
                holder = max(known, holder, key=lambda each: each.fence)
                ends, others = ends + ends_before, min(others, others_before)
                uncounted += more
            by_token[holder.token] = holder, ends, others, uncounted
        for holder, ends, others, uncounted in by_token.values():
            ends.sort()
            votes = len(ends)
            end = ends[votes - quorum] if votes >= quorum else ends[-1]
            held = is_held(votes - uncounted, others, quorum)
            yield SeenHolder(text_in(key), holder, votes, end / _MS, held)
