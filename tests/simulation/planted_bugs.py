"""Bugs that are planted into the real code, to show that the simulator finds them.

Each is a mistake of another lock library, or of an earlier draft of this one.
``PlantedBug.within`` is several times the number of histories that it took on average
to find the bug on the day it was planted.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_redlock.core import fence, lease, quorum, redlock
from celery_redlock.core.extension import Extension
from celery_redlock.core.lease import drift_of, end_of_validity
from celery_redlock.core.quorum import Ballot, Verdict, VoteKind
from celery_redlock.core.redlock import Redlock
from celery_redlock.core.renewal import schedule
from celery_redlock.core.renewal.watchdog import Watchdog
from celery_redlock.core.restart_guard import RestartGuard
from celery_redlock.core.scripts import GRANTED, TAKEN, UNSYNCED, operations
from celery_redlock.core.transport import broadcast, requests
from celery_redlock.core.wait_queue import WaitQueue
from tests.simulation import clients
from tests.simulation.observed_lease import ObservedLease
from tests.simulation.world import Thread, current_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.scripts.operations import Keyspace
    from celery_redlock.errors import LockUnavailable

__all__ = ["PLANTED_BUGS", "PlantedBug"]

_Patches = list[tuple[Any, str, Any]]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One bug.

    Attributes:
        name: What the code does wrong.
        patches: Returns the replacements: object, attribute, new value.
        findings: The kinds of findings that show the bug.
        within: The number of histories, from seed 0, in which it must be found.
        style: The style of these histories; any by default.
        ignored: Findings that show it too easily.
    """

    name: str
    patches: Callable[[], _Patches]
    findings: tuple[str, ...]
    within: int
    style: str = ""
    ignored: tuple[str, ...] = ()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug in the code while the block runs."""
        with contextlib.ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(mock.patch.object(target, name, value))
            yield

    def __str__(self) -> str:
        return self.name


# -- Fences ------------------------------------------------------------------------


def _no_second_round() -> _Patches:
    def raise_fence(won: Ballot, *_: object, **__: object) -> int:
        return max(won.numbers(VoteKind.GRANTED))

    return [(redlock, "raise_fence", raise_fence)]


def _raise_without_lock() -> _Patches:
    def raise_fence(node: Keyspace, keys: list[bytes], args: list[bytes]) -> Any:
        _, counters = keys
        _, _, stripe, number = args
        if float(node.hget(counters, stripe) or 0) < float(number):
            node.hset(counters, {stripe: number})
        return [GRANTED, int(number)]

    def of_all_nodes(won: Ballot) -> dict[int, int]:
        return {
            index: vote.number if vote else 0 for index, vote in enumerate(won.votes)
        }

    replaced = (fence, "_numbers_of", of_all_nodes)
    return [(operations, "raise_fence", raise_fence), replaced]


def _recovery_before_quarantine() -> _Patches:
    right = operations.acquire

    def acquire(node: Keyspace, keys: list[bytes], args: list[bytes]) -> Any:
        reply = right(node, keys, args)
        known = node.hgetall(keys[1])
        incarnation = known.get(b"incarnation", b"")
        is_synced = known.get(b"synced") == incarnation
        return reply if is_synced else [UNSYNCED, incarnation]

    def sync(node: Keyspace, keys: list[bytes], args: list[bytes]) -> Any:
        (meta,) = keys
        _, named, _, _, *pairs = args
        known = node.hgetall(meta)
        incarnation = known.get(b"incarnation", b"")
        if known.get(b"run_id") != node.run_id or named != incarnation:
            return [UNSYNCED, incarnation]
        for field, number in zip(pairs[::2], pairs[1::2], strict=True):
            if float(known.get(field, 0)) < float(number):
                node.hset(meta, {field: number})
        node.hset(meta, {b"synced": incarnation})
        node.hdel(meta, b"quarantine_until")
        return [GRANTED, 0]

    return [(operations, "acquire", acquire), (operations, "sync", sync)]


# -- Holders -----------------------------------------------------------------------


def _no_guard() -> _Patches:
    right = RestartGuard.__init__

    def disabled(self: RestartGuard, *args: Any, **options: Any) -> None:
        right(self, *args, **{**options, "enabled": False})

    return [(RestartGuard, "__init__", disabled)]


def _one_token() -> _Patches:
    return [(redlock, "new_token", lambda base: f"{base}.x")]


class _LeaseFromReply(ObservedLease):
    __slots__ = ()

    def __init__(self, **parts: Any) -> None:
        ttl, now = parts["ttl"], parts["clock"].monotonic()
        super().__init__(**{**parts, "until": now + ttl - drift_of(ttl)})


def _validity_from_reply() -> _Patches:
    return [(redlock, "Lease", _LeaseFromReply)]


def _no_drift() -> _Patches:
    def nothing(_: float) -> float:
        return 0.0

    return [(lease, "drift_of", nothing)]


def _release_by_del() -> _Patches:
    def release(node: Keyspace, keys: list[bytes], _: list[bytes]) -> int:
        gone = node.get(keys[0]) is not None
        node.delete(keys[0])
        return int(gone)

    return [(operations, "release", release)]


def _split_is_held() -> _Patches:
    right = Ballot._verdict  # noqa: SLF001  (a planted bug reaches inside)

    def verdict(self: Ballot, pending: int) -> Verdict:
        found = right(self, pending)
        split = found is Verdict.CONTENDED and self.taken
        return Verdict.HELD if split else found

    return [(Ballot, "_verdict", verdict)]


def _half_is_a_quorum() -> _Patches:
    def half(nodes: int) -> int:
        return max(1, nodes // 2)

    return [(module, "quorum_of", half) for module in (quorum, broadcast, requests)]


# -- Renewal -----------------------------------------------------------------------


def _extension_recreates() -> _Patches:
    def extend(node: Keyspace, keys: list[bytes], args: list[bytes]) -> Any:
        lock, _ = keys
        _, token, ttl_ms, _ = args
        value = node.get(lock)
        if value is not None and not value.startswith(token):
            return [TAKEN, value, node.pttl(lock)]
        node.set(lock, value or token + b"\n1\n", px=int(ttl_ms))
        return [GRANTED, 0]

    def renew(self: Extension, votes: int) -> None:
        self.result = True
        self.lease.until = end_of_validity(self.started_at, self.lease.ttl)
        self.lease.votes = votes

    return [
        (operations, "extend", extend),
        (Extension, "_renew", renew),
        (Extension, "_is_over", lambda _: False),
    ]


def _another_connection() -> _Patches:
    def watchdog(right: Redlock) -> Watchdog:
        other = copy.copy(right)
        other.transport = clients.new_broadcast(
            right.addresses, right.clock, right.timing
        )
        return Watchdog(other)

    return [(clients, "Watchdog", watchdog)]


def _long_sleep() -> _Patches:
    return [(schedule, "_LONGEST_SLEEP", 5.0)]


# -- Waiting -----------------------------------------------------------------------


def _no_wakeup() -> _Patches:
    def wake_first(*_: object) -> None:
        pass

    return [(operations, "wake_first", wake_first)]


def _no_polling() -> _Patches:
    right = WaitQueue._look  # noqa: SLF001  (a planted bug reaches inside)

    def look(self: WaitQueue) -> float | None:
        return None if right(self) is None else math.inf

    return [(WaitQueue, "_look", look)]


def _wakeup_is_a_grant() -> _Patches:
    listen, attempt = WaitQueue._listen, Redlock._attempt  # noqa: SLF001
    woken: set[Thread] = set()

    def note_wakeup(self: WaitQueue, until: float) -> bool:
        is_my_turn = listen(self, until)
        if is_my_turn:
            woken.add(current_thread())
        return is_my_turn

    def believe(
        self: Redlock, key: str, ttl: float, token: str, info: str
    ) -> Lease | LockUnavailable:
        if current_thread() not in woken:
            return attempt(self, key, ttl, token, info)
        woken.remove(current_thread())
        now = self.clock.monotonic()
        return ObservedLease(
            key=key,
            token=token,
            holder_info=info,
            fence=round(self.clock.wall() * 1e6),
            ttl=ttl,
            started_at=now,
            until=now + ttl - drift_of(ttl),
            votes=self.quorum,
            clock=self.clock,
            confirm=self.confirm,
        )

    return [(WaitQueue, "_listen", note_wakeup), (Redlock, "_attempt", believe)]


_ORDER = ("duplicate fence", "fence decreased", "fences out of order")
_HOLDERS = ("two holders",)
_WAITER = ("waiter not woken",)
_OVERTAKEN = ("release overtaken",)
PLANTED_BUGS = (
    PlantedBug("fence without a second round", _no_second_round, _ORDER, 100),
    PlantedBug(
        "raise without the lock", _raise_without_lock, _ORDER, 3000, "simultaneous"
    ),
    PlantedBug(
        "recovery before the quarantine", _recovery_before_quarantine, _ORDER, 1000
    ),
    PlantedBug("no restart guard", _no_guard, _HOLDERS, 2000),
    PlantedBug(
        "one token for all tries", _one_token, _HOLDERS, 6000, "bodies", _OVERTAKEN
    ),
    PlantedBug(
        "validity from the reply", _validity_from_reply, _HOLDERS, 1000, "expiry"
    ),
    PlantedBug("no drift", _no_drift, _HOLDERS, 1500, "expiry"),
    PlantedBug("release by DEL", _release_by_del, _HOLDERS, 100),
    PlantedBug(
        "split votes are held", _split_is_held, ("holder without a majority",), 100
    ),
    PlantedBug("half is a quorum", _half_is_a_quorum, _HOLDERS, 100),
    PlantedBug(
        *("extension re-creates", _extension_recreates, ("ended lease extended",)),
        *(2000, "expiry"),
    ),
    PlantedBug(
        "renewal by another connection", _another_connection, _OVERTAKEN, 2000, "bodies"
    ),
    PlantedBug(
        "watchdog sleeps too long", _long_sleep, ("loss reported late",), 500, "expiry"
    ),
    PlantedBug("release wakes no waiter", _no_wakeup, _WAITER, 100, "calm"),
    PlantedBug("waiter never polls again", _no_polling, _WAITER, 100, "calm"),
    PlantedBug("wake-up taken for a grant", _wakeup_is_a_grant, _HOLDERS, 100),
)
