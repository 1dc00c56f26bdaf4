"""Bugs planted into the real code, to see whether the simulator finds them.

Each is something that a lock library got wrong, or that an earlier draft of this
one would have. ``Plant.found_as`` says what the witness may call it, and
``Plant.within`` how many histories may be needed: several times as many as it took
to find it once, on average, on the day it was planted.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_redlock.core import ballot, commands, fanout, guard, inbox, redlock
from celery_redlock.core.ballot import Ballot, Verdict, VoteKind
from celery_redlock.core.extension import Extension
from celery_redlock.core.fence import Fence
from celery_redlock.core.guard import Guard
from celery_redlock.core.node import Node
from celery_redlock.core.redlock import Redlock
from celery_redlock.core.renewal import Watchdog
from celery_redlock.core.scripts import GRANTED, TAKEN, UNSYNCED
from celery_redlock.core.timing import drift_of
from celery_redlock.core.waiting import Waiting
from celery_redlock.testing.line import LineScripts
from celery_redlock.testing.nodes import MemoryNode
from tests.simulation import clients
from tests.simulation.network import Selector
from tests.simulation.observed import ObservedLease
from tests.simulation.world import Thread, here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.errors import LockUnavailable

__all__ = ["PLANTS", "Plant"]

_Patches = list[tuple[Any, str, Any]]


@dataclass(frozen=True, slots=True)
class Plant:
    """One bug.

    Attributes:
        name: What is done wrong.
        patches: Makes what replaces the right code: object, attribute, new value.
        found_as: What the witness may call it.
        style: Of the histories in which it is looked for; any by default.
        blind_to: What the witness is not to mention, being too easy.
        within: Histories, from seed 0 on, among which it must be found.
    """

    name: str
    patches: Callable[[], _Patches]
    found_as: tuple[str, ...]
    within: int
    style: str = ""
    blind_to: tuple[str, ...] = ()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug while the block runs."""
        with contextlib.ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(mock.patch.object(target, name, value))
            yield

    def __str__(self) -> str:
        return self.name


def _naive_fence() -> _Patches:
    def settle(_: Fence, ballot: Ballot, **__: object) -> int:
        return max(ballot.numbers(VoteKind.GRANTED))

    return [(Fence, "settle", settle)]


def _raise_without_holding() -> _Patches:
    def raise_fence(node: MemoryNode, keys: list[bytes], args: list[bytes]) -> Any:
        _, counters = keys
        _, _, stripe, number = args
        if float(node.redis.hget(counters, stripe) or 0) < float(number):
            node.redis.hset(counters, {stripe: number})
        return [GRANTED, int(number)]

    right = Fence._raise  # noqa: SLF001  (a plant reaches inside)

    def count_all(
        self: Fence, quorum: int, _: set[int], agreed: set[int], *rest: Any
    ) -> int | None:
        everyone = set(range(len(self._transport.labels)))
        return right(self, quorum, everyone, agreed, *rest)

    return [(MemoryNode, "raise_fence", raise_fence), (Fence, "_raise", count_all)]


def _early_recovery() -> _Patches:
    right = MemoryNode.acquire

    def life_of(node: MemoryNode, meta: bytes) -> bytes:
        return node.redis.hget(meta, b"life") or node.run_id.encode()

    def acquire(node: MemoryNode, keys: list[bytes], args: list[bytes]) -> Any:
        reply = right(node, keys, args)
        life = life_of(node, keys[2])
        is_synced = node.redis.hget(keys[2], b"synced") == life
        return reply if is_synced else [UNSYNCED, life]

    def sync(node: MemoryNode, keys: list[bytes], args: list[bytes]) -> Any:
        counters, meta, _ = keys
        named, _, *pairs = args
        life = life_of(node, meta)
        if node.redis.hget(meta, b"run_id") != node.run_id.encode() or named != life:
            return [UNSYNCED, life]
        for field, number in zip(pairs[::2], pairs[1::2], strict=True):
            if float(node.redis.hget(counters, field) or 0) < float(number):
                node.redis.hset(counters, {field: number})
        node.redis.hset(meta, {b"synced": life})
        return [GRANTED, 0]

    return [(MemoryNode, "acquire", acquire), (MemoryNode, "sync", sync)]


def _no_guard() -> _Patches:
    right = Guard.__init__

    def disabled(self: Guard, *args: Any, **options: Any) -> None:
        right(self, *args, **{**options, "enabled": False})

    return [(Guard, "__init__", disabled)]


def _reused_token() -> _Patches:
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

    return [(redlock, "drift_of", nothing), (commands, "drift_of", nothing)]


def _extension_recreates() -> _Patches:
    def extend(node: MemoryNode, keys: list[bytes], args: list[bytes]) -> Any:
        lock, _, _ = keys
        _, token, ttl_ms = args
        value = node.redis.get(lock)
        if value is not None and not value.startswith(token):
            return [TAKEN, value, node.redis.pttl(lock)]
        node.redis.set(lock, value or token + b"\n1\n", px=int(ttl_ms))
        return [GRANTED, 0]

    def renew(self: Extension, votes: int) -> None:
        self.result = True
        self.lease.until = self.started_at + self.lease.ttl - self._drift
        self.lease.votes = votes

    return [
        (MemoryNode, "extend", extend),
        (Extension, "_renew", renew),
        (Extension, "_is_over", lambda _: False),
    ]


def _other_connection() -> _Patches:
    def watchdog(right: Redlock) -> Watchdog:
        other = copy.copy(right)
        selector: Any = Selector
        other.transport = fanout.Fanout(
            [
                Node(address, clock=right.clock, connect_timeout=0.1)
                for address in right.addresses
            ],
            clock=right.clock,
            timing=right.timing,
            new_selector=selector,
        )
        return Watchdog(other)

    return [(clients, "Watchdog", watchdog)]


def _release_by_del() -> _Patches:
    def release(node: MemoryNode, keys: list[bytes], _: list[bytes]) -> int:
        gone = node.redis.get(keys[0]) is not None
        node.redis.delete(keys[0])
        return int(gone)

    return [(MemoryNode, "release", release)]


def _split_is_held() -> _Patches:
    right = Ballot._verdict  # noqa: SLF001  (a plant reaches inside)

    def verdict(self: Ballot, pending: int) -> Verdict:
        said = right(self, pending)
        split = said is Verdict.CONTENDED and self.taken
        return Verdict.HELD if split else said

    return [(Ballot, "_verdict", verdict)]


def _half_is_enough() -> _Patches:
    def half(nodes: int) -> int:
        return max(1, nodes // 2)

    return [(module, "quorum_of", half) for module in (ballot, fanout, guard, redlock)]


def _nobody_woken() -> _Patches:
    def wake_first(*_: object) -> None:
        pass

    return [(LineScripts, "wake_first", wake_first)]


def _never_looks_again() -> _Patches:
    right = Waiting._look  # noqa: SLF001  (a plant reaches inside)

    def look(self: Waiting) -> float | None:
        return None if right(self) is None else math.inf

    return [(Waiting, "_look", look)]


def _woken_has_it() -> _Patches:
    listen, attempt = Waiting._listen, Redlock._attempt  # noqa: SLF001
    woken: set[Thread] = set()

    def note(self: Waiting, until: float) -> bool:
        is_my_turn = listen(self, until)
        if is_my_turn:
            woken.add(here())
        return is_my_turn

    def believe(
        self: Redlock, key: str, ttl: float, token: str, facts: str
    ) -> Lease | LockUnavailable:
        if here() not in woken:
            return attempt(self, key, ttl, token, facts)
        woken.remove(here())
        now = self.clock.monotonic()
        return ObservedLease(
            key=key,
            token=token,
            facts=facts,
            fence=self.clock.wall_us(),
            ttl=ttl,
            started_at=now,
            until=now + ttl - drift_of(ttl),
            votes=self.quorum,
            clock=self.clock,
            confirm=self.confirm,
        )

    return [(Waiting, "_listen", note), (Redlock, "_attempt", believe)]


_OVERLAP = ("two holders",)


def _sleeps_on() -> _Patches:
    return [(inbox, "_LONGEST_SLEEP", 5.0)]


_ASLEEP = ("nobody woken",)
_ORDER = ("same fence", "fence goes back", "grants out of order")
PLANTS = (
    Plant("naive fence", _naive_fence, _ORDER, 100),
    Plant("raise without holding", _raise_without_holding, _ORDER, 3000, "duel"),
    Plant("recovery at the start", _early_recovery, _ORDER, 1000),
    Plant("no guard", _no_guard, _OVERLAP, 2000),
    Plant(
        "token reused", _reused_token, _OVERLAP, 6000, "run", ("released too early",)
    ),
    Plant("validity from the reply", _validity_from_reply, _OVERLAP, 1000, "lapse"),
    Plant("no drift", _no_drift, _OVERLAP, 1500, "lapse"),
    Plant(
        "extension re-creates", _extension_recreates, ("resurrected",), 2000, "lapse"
    ),
    Plant("renewal elsewhere", _other_connection, ("released too early",), 2000, "run"),
    Plant("release by DEL", _release_by_del, _OVERLAP, 100),
    Plant("skip on a split", _split_is_held, ("false holder",), 100),
    Plant("half is enough", _half_is_enough, _OVERLAP, 100),
    Plant("release wakes nobody", _nobody_woken, _ASLEEP, 100, "calm"),
    Plant("never looks again", _never_looks_again, _ASLEEP, 100, "calm"),
    Plant("watchdog sleeps on", _sleeps_on, ("loss kept quiet",), 500, "lapse"),
    Plant("taken at its word", _woken_has_it, _OVERLAP, 100),
)
