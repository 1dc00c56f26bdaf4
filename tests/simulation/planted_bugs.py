"""Bugs that are planted into the real code, to show that the simulator finds them.

Each is a mistake of another lock library, or of an earlier draft of this one.
``PlantedBug.within`` is several times the number of histories that it took on average
to find the bug on the day it was planted.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock
from weakref import WeakKeyDictionary

from celery_redlock.basics.backoff import any_of
from celery_redlock.locks import fence, lease, redlock
from celery_redlock.locks import renewal_schedule as schedule
from celery_redlock.locks.extension import Extension
from celery_redlock.locks.lease import drift_of, end_of_validity
from celery_redlock.locks.permits import RecentPermits
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.wait_queue import WaitQueue
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.members import restart_guard
from celery_redlock.members.restart_guard import RestartGuard, counters_in
from celery_redlock.scripts import ALL_SCRIPTS, COUNTERS, GRANTED, INSPECT, Script, host
from celery_redlock.testing.memory_node import MemoryKeyspace
from celery_redlock.wire import broadcast, node, quorum, requests
from celery_redlock.wire.quorum import Ballot, Verdict, VoteKind
from tests.simulation import clients
from tests.simulation.observed_lease import ObservedLease
from tests.simulation.planner import PERMITS
from tests.simulation.world import Thread, current_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.errors import LockUnavailable
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.limits import Limit
    from celery_redlock.members.view import View
    from celery_redlock.scripts.keyspace import Keyspace
    from celery_redlock.wire.requests import ScriptRequest
    from celery_redlock.wire.steps import Steps

_Patches = list[tuple[Any, str, Any]]
_Right = Callable[[list[bytes], list[bytes]], Any]


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


# -- Scripts -----------------------------------------------------------------------


def _edited(names: str, *edits: tuple[str, str]) -> _Patches:
    """Replace parts of the Lua of these scripts."""
    scripts = {}
    for script in ALL_SCRIPTS:
        if script.name in names.split() or not names:
            source = script.source
            for old, new in edits:
                source = source.replace(old, new)
            assert source != script.source or not names, script.name
            scripts[script.sha] = Script(script.name, source)
    assert any(sha != script.sha for sha, script in scripts.items())
    right = host.run

    def run(script: Script, *of_it: Any) -> Any:
        return right(scripts.get(script.sha, script), *of_it)

    return [(host, "run", run)]


def _instead(
    name: str, what: Callable[[Keyspace, list[bytes], list[bytes], _Right], Any]
) -> _Patches:
    """Do something else where a node runs a script; it can still call the right one."""
    right = host.run

    def run(
        script: Script, keys: list[bytes], args: list[bytes], node: Keyspace
    ) -> Any:
        if script.name != name:
            return right(script, keys, args, node)
        return what(node, keys, args, lambda k, a: right(script, k, a, node))

    return [(host, "run", run)]


# -- Fences ------------------------------------------------------------------------


def _no_second_round() -> _Patches:
    def raise_fence(won: Ballot, *_: object, **__: object) -> Steps[int]:
        yield from ()
        return max(won.numbers(VoteKind.GRANTED))

    return [(redlock, "raise_fence", raise_fence)]


def _raise_without_lock() -> _Patches:
    def of_all_nodes(won: Ballot) -> dict[int, int]:
        return {
            index: vote.number if vote else 0 for index, vote in enumerate(won.votes)
        }

    raised = _edited(
        "raise_fence",
        ("if ours < locks then return {FREE} end", ""),
        ("if is_raised then", "if is_raised and ours == locks then"),
    )
    return [*raised, (fence, "_numbers_of", of_all_nodes)]


def _recovery_before_quarantine() -> _Patches:
    right_admit, right_sync = RestartGuard._admit, RestartGuard._sync  # noqa: SLF001
    early: WeakKeyDictionary[RestartGuard, dict[str, list[Any]]] = WeakKeyDictionary()

    def admit(self: RestartGuard, view: View, gone: set[int]) -> int:
        counters = self.ask(COUNTERS, [str(view)])
        known = [
            item
            for index in counters.ballot.indexes(VoteKind.GRANTED)
            for item in counters_in(counters.replies[index][2:])
        ]
        for index in counters.ballot.indexes(VoteKind.QUARANTINED):
            identity = view.member(counters.ballot.labels[index]).identity
            early.setdefault(self, {}).setdefault(identity, known)
        return right_admit(self, view, gone)

    def sync(  # noqa: PLR0913  (those of the right one)
        self: RestartGuard,
        index: int,
        view: View,
        identity: str,
        pairs: list[Any],
        *,
        floor: bool,
    ) -> bool:
        pairs = early.get(self, {}).get(identity, pairs)
        return right_sync(self, index, view, identity, pairs, floor=floor)

    return [(RestartGuard, "_admit", admit), (RestartGuard, "_sync", sync)]


def _same_number_again() -> _Patches:
    """Grant with the number that the node has, and not with the next one."""
    return _edited(
        "acquire",
        ("number = number + 1", "number = math.max(1, number)"),
        ("math.abs(hint_us - now_us()) <= tolerance_us", "false"),
    )


def _no_counters_taken_over() -> _Patches:
    right = RestartGuard._sync  # noqa: SLF001

    def sync(
        self: RestartGuard, index: int, view: View, identity: str, *_: Any, floor: bool
    ) -> bool:
        return right(self, index, view, identity, [], floor=floor)

    return [(RestartGuard, "_sync", sync)]


# -- Holders -----------------------------------------------------------------------


def _no_guard() -> _Patches:
    right = RestartGuard.__init__

    def disabled(self: RestartGuard, *args: Any, **options: Any) -> None:
        right(self, *args, **{**options, "enabled": False})

    return [(RestartGuard, "__init__", disabled)]


def _short_quarantine() -> _Patches:
    right = RestartGuard.__init__

    def short(self: RestartGuard, *args: Any, **options: Any) -> None:
        right(self, *args, **options)
        self.quarantine_ms //= 100

    return [(RestartGuard, "__init__", short)]


def _overwriting(name: str) -> _Patches:
    """Let a script delete locks of other holders before it looks at them."""
    looks = "local ours, mine, taken = 0, nil, nil\n"
    deletes = """for i = 1, locks do
      local is_ours = owned(redis.call('GET', KEYS[i]), token)
      if not is_ours then redis.call('DEL', KEYS[i]) end
    end
    """
    return _edited(name, (looks, deletes + looks))


def _grant_of_a_taken_lock() -> _Patches:
    return _overwriting("acquire")


def _restore_over_another() -> _Patches:
    return _overwriting("restore")


def _part_of_the_keys_is_enough() -> _Patches:
    def acquire(
        node: Keyspace, keys: list[bytes], args: list[bytes], right: _Right
    ) -> Any:
        """Grant the keys that are free, and say that all of them were granted."""
        *locks, meta = keys
        words, stripes = args[:6], args[6:]
        free = [
            (lock, stripe)
            for lock, stripe in zip(locks, stripes, strict=True)
            if (value := node.get(lock)) is None or value.startswith(args[0])
        ]
        if not free:
            return right(keys, args)
        some, theirs = zip(*free, strict=True)
        return right([*some, meta], [*words, *theirs])

    return _instead("acquire", acquire)


def _locks_without_an_end() -> _Patches:
    return _edited("acquire", ("'PX', ttl_ms)", "'PX', '100000000')"))


def _failed_attempt_stays() -> _Patches:
    def send_release(*_: object, **__: object) -> None:
        pass

    return [(Redlock, "_send_release", send_release)]


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
    return _edited("release", ("if owned(value, token) then", "if true then"))


def _release_of_one_key() -> _Patches:
    return _edited("release", ("for i = 1, locks do", "for i = 1, 1 do"))


def _restore_of_one_key() -> _Patches:
    return _edited("restore", ("local locks = #KEYS - 1", "local locks = 1"))


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
    inspect = host.run

    def extend(
        node: Keyspace, keys: list[bytes], args: list[bytes], _right: _Right
    ) -> Any:
        *locks, _, _ = keys
        _, *owners = args
        renewed = [*zip(locks, owners[::2], owners[1::2], strict=True)]
        for lock, token, _ in renewed:
            value = node.get(lock)
            if value is not None and not value.startswith(token):
                return inspect(INSPECT, locks, [], node)
        for lock, token, ttl_ms in renewed:
            value = node.get(lock) or token + b"\n1\n"
            node.set(lock, value, px=int(ttl_ms))
        return [GRANTED, 0]

    def renew(self: Extension, votes: int) -> None:
        self.result = True
        for one in self.leases:
            one.until = end_of_validity(self.started_at, one.ttl)
            one.votes = votes

    return [
        *_instead("extend", extend),
        (Extension, "_renew", renew),
        (Extension, "_is_over", lambda _: False),
    ]


def _another_connection() -> _Patches:
    def watchdog(right: Redlock) -> Watchdog:
        other = object.__new__(type(right))  # a service of a test is not copied
        vars(other).update(vars(right))
        other.transport = clients.new_broadcast(
            right.addresses, right.clock, right.timing
        )
        return Watchdog(other)

    return [(clients, "Watchdog", watchdog)]


def _long_sleep() -> _Patches:
    return [(schedule, "_LONGEST_SLEEP", 5.0)]


# -- Members -----------------------------------------------------------------------


def _refusal_by(compares: str) -> _Patches:
    """Let a node take the view of a client for its own where this Lua says so."""
    is_view = "string.find(config, '^format %d+, max_ttl')"
    refuses = "if config ~= view then"
    spares = f"if config ~= view and not ({is_view} and {compares}) then"
    return _edited("", (refuses, spares))


def _members_are_not_checked() -> _Patches:
    return _refusal_by("true")


def _identity_by_name() -> _Patches:
    """Compare the settings and the labels, and not who has which identity."""
    configuration = (
        "string.gsub(string.gsub({}, ', deployment .-, nodes ', ' '), '=%d+%.%w+', '')"
    )
    ours, theirs = map(configuration.format, ("config", "view"))
    return _refusal_by(f"({ours}) == ({theirs})")


def _memory_back_trusted() -> _Patches:
    """Compare the name of the process, and not that of its data."""
    compared = "local replication = redis.call('INFO', 'replication')\n  return not"
    return _edited("", (compared, f"do return false end\n  {compared}"))


def _eviction_overlooked() -> _Patches:
    stats = "redis.call('INFO', 'stats')"
    compared = f"if not string.find({stats}, counted, 1, true) then return true end"
    return _edited("", (compared, ""))


def _instant_ahead_believed() -> _Patches:
    """Wait until an instant that a clock stored that was ahead for a moment."""
    return _edited(
        "join",
        ("tonumber(state[5]) > now + longest then", "false then"),
        ("tonumber(fields[i + 1]) > now then", "false then"),
    )


def _lock_outlasts_a_clock_set_back() -> _Patches:
    return _edited("", ("if left_ms > max_ttl_ms and", "if false and"))


def _start_trusted_after_a_vote() -> _Patches:
    return [(MemoryKeyspace, "note_vote", lambda _: None)]


def _start_of_a_replica_trusted() -> _Patches:
    right = MemoryKeyspace.promote

    def promote(self: MemoryKeyspace) -> None:
        started_ms = self.started_ms
        right(self)
        self.started_ms = started_ms

    return [
        *_edited("", ("if may_be_copy() then return nil end", "")),
        (MemoryKeyspace, "promote", promote),
        (MemoryKeyspace, "note_vote", lambda _: None),
    ]


def _open_lifts_quarantine() -> _Patches:
    def open_(
        store: Keyspace, keys: list[bytes], args: list[bytes], _right: _Right
    ) -> Any:
        (meta,), (_, planned, *_) = keys, args
        present = store.hgetall(meta).get(b"identity") or store.replid[:8]
        fields = {b"config": planned, b"votes": b"1"}
        fields |= {b"replid": store.replid, b"evicted": store.evicted}
        fields |= {b"identity": present}
        store.hset(meta, fields)
        store.hdel(meta, b"quarantine_until")
        return [GRANTED, 0]

    return _instead("open", open_)


def _newcomer_waits_alone() -> _Patches:
    right = restart_guard._age  # noqa: SLF001

    def age(reply: Any, known: bytes) -> float:
        return math.inf if right(reply, known) >= 0 else -1

    return [(restart_guard, "_age", age)]


def _one_confirms() -> _Patches:
    return [(RestartGuard, "_needed", property(lambda _: 1))]


def _renewal_without_vote() -> _Patches:
    """Renew and restore on a node that has forgotten, or waits."""
    asks = (
        "if refused and (not is_member",
        "if refused then return refused end\n-- Read the first",
    )
    lenient = "if refused and refused[1] ~= MISCONFIGURED then refused = nil end\n"
    return _edited("extend restore", *((one, lenient + one) for one in asks))


# -- Waiting -----------------------------------------------------------------------


def _no_wakeup() -> _Patches:
    begins = "local function wake_first(wait_queue, free_in_ms, behind)\n"
    return _edited("", (begins, begins + "  do return end\n"))


def _no_polling() -> _Patches:
    right = WaitQueue._look  # noqa: SLF001  (a planted bug reaches inside)

    def look(self: WaitQueue) -> Steps[float | None]:
        return None if (yield from right(self)) is None else math.inf

    return [(WaitQueue, "_look", look)]


def _wakeup_is_a_grant() -> _Patches:
    listen, attempt = WaitQueue._listen, Redlock._attempt  # noqa: SLF001
    woken: set[Thread] = set()

    def note_wakeup(self: WaitQueue, until: float) -> Steps[bool]:
        is_my_turn = yield from listen(self, until)
        if is_my_turn:
            woken.add(current_thread())
        return is_my_turn

    def believe(
        self: Redlock, key: str, ttl: float, token: str, *more: Any
    ) -> Steps[Lease | LockUnavailable]:
        if current_thread() not in woken:
            return (yield from attempt(self, key, ttl, token, *more))
        woken.remove(current_thread())
        now = self.clock.monotonic()
        return ObservedLease(
            key=key,
            token=token,
            holder_info=more[0].info(key),
            fence=round(self.clock.wall() * 1e6),
            ttl=ttl,
            started_at=now,
            until=now + ttl - drift_of(ttl),
            votes=self.quorum,
            clock=self.clock,
            confirm=self.confirm,
        )

    return [(WaitQueue, "_listen", note_wakeup), (Redlock, "_attempt", believe)]


# -- Permits -----------------------------------------------------------------------


def _counter_on_each_node() -> _Patches:
    def acquire_permits(
        node: Keyspace, keys: list[bytes], args: list[bytes], right: _Right
    ) -> Any:
        """Grant any permit that is free on this node."""
        *locks, meta = keys
        limits = args[6 + len(locks) :]
        for place, (head, most) in enumerate(
            zip(limits[::3], limits[1::3], strict=True)
        ):
            if head.endswith(b"##"):
                names = [head + b"%d" % n for n in range(1, int(most) + 1)]
                names[0] = head[:-2]
                free = [name for name in names if node.get(name) is None]
                if node.get(locks[place]) is not None and free:
                    locks[place] = free[0]
        return right([*locks, meta], args)

    return _instead("acquire_permits", acquire_permits)


def _fresh_key_for_each_permit() -> _Patches:
    def guess(_: RecentPermits, __: Limit) -> int:
        return any_of(range(2, 1_000_000))

    return [(RecentPermits, "guess", guess)]


def _one_permit_too_many() -> _Patches:
    def guess(_: RecentPermits, limit: Limit) -> int:
        return any_of(range(1, limit.most + 2))

    return [(RecentPermits, "guess", guess)]


def _starts_released_at_once() -> _Patches:
    def keep_starts(self: Redlock, lease: Lease) -> None:
        for permit in lease.choice.starts if lease.choice else ():
            request = self._release_request(lease.key, [permit], lease.token, since=0.0)
            self.transport.send(request)

    return [(Redlock, "_keep_starts", keep_starts)]


def _starts_kept_for_the_ttl() -> _Patches:
    def kept(ttl: float, _: Limit) -> float:
        return ttl

    def keep_starts(*_: object) -> None:
        pass

    return [(redlock, "_kept", kept), (Redlock, "_keep_starts", keep_starts)]


# -- Requests of one process ---------------------------------------------------------


def _wrong_request() -> _Patches:
    right = node.Node.send

    def send(self: node.Node, asked: Sequence[ScriptRequest]) -> None:
        right(self, asked)
        pending: Any = self.pending
        if len(pending) > 1 and pending[-1].call[0] is pending[-2].call[0]:
            pending[-1], pending[-2] = pending[-2], pending[-1]  # of one script

    return [(node.Node, "send", send)]


def _reader_leaves() -> _Patches:
    def engage(_: object) -> bool:
        return True  # though no thread reads

    never = (broadcast, "_LOOK_EVERY", 10_000.0)
    return [(broadcast.Broadcast, "_engage", engage), never]


_ORDER = ("duplicate fence", "fence decreased", "fences out of order")
_LOWER = ("fence decreased",)
_HOLDERS = ("two holders",)
_NUMBER = ("more holders than permits",)
_RATE = ("more starts than the rate",)
_WAITER = ("waiter not woken",)
_STUCK = ("stuck",)
_LEFT = ("lock left behind",)
_UNAVAILABLE = ("lock unavailable",)
_OVERTAKEN = ("release overtaken",)
_NO_VOTE = ("node does not vote",)
PLANTED_BUGS = (
    PlantedBug("fence without a second round", _no_second_round, _ORDER, 100),
    PlantedBug(
        "raise without the lock", _raise_without_lock, _ORDER, 3000, "simultaneous"
    ),
    PlantedBug("grant with the same number", _same_number_again, _ORDER, 100),
    PlantedBug(
        "counters are not taken over", _no_counters_taken_over, _ORDER, 3000, "bodies"
    ),
    PlantedBug("no restart guard", _no_guard, _HOLDERS, 2000),
    PlantedBug("short quarantine", _short_quarantine, _HOLDERS, 2000),
    PlantedBug("grant of a taken lock", _grant_of_a_taken_lock, _HOLDERS, 100),
    PlantedBug(
        *("part of the keys is enough", _part_of_the_keys_is_enough),
        *(("part of the keys",), 100),
    ),
    PlantedBug("locks without an end", _locks_without_an_end, _LEFT, 100),
    PlantedBug("failed attempt stays", _failed_attempt_stays, _UNAVAILABLE, 100),
    PlantedBug(
        "one token for all tries", _one_token, _HOLDERS, 6000, "bodies", _OVERTAKEN
    ),
    PlantedBug(
        "validity from the reply", _validity_from_reply, _HOLDERS, 1000, "expiry"
    ),
    PlantedBug("no drift", _no_drift, _HOLDERS, 1500, "expiry"),
    PlantedBug("replies to the wrong request", _wrong_request, _HOLDERS, 100),
    PlantedBug("reader leaves others waiting", _reader_leaves, _STUCK, 100),
    PlantedBug("release by DEL", _release_by_del, _HOLDERS, 100),
    PlantedBug(
        "release of one key of two", _release_of_one_key, ("part of the keys",), 200
    ),
    PlantedBug(
        "restore that forgets a key", _restore_of_one_key, ("part of the keys",), 400
    ),
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
    PlantedBug(
        "fresh key for each permit", _fresh_key_for_each_permit, _NUMBER, 50, PERMITS
    ),
    PlantedBug("one permit too many", _one_permit_too_many, _NUMBER, 100, PERMITS),
    PlantedBug(
        "starts released at once", _starts_released_at_once, _RATE, 100, PERMITS
    ),
    PlantedBug(
        "starts kept for the ttl", _starts_kept_for_the_ttl, _RATE, 200, PERMITS
    ),
)

# The simulator did not find these, in so many histories. Other tools do: see evidence.
MISSED_BUGS = (
    PlantedBug("restore over another holder", _restore_over_another, _HOLDERS, 3700),
)

# These show in plans that are written by hand: see ``test_scenarios``.
MEMBERSHIP_BUGS = {
    bug.name: bug
    for bug in (
        PlantedBug(name, patches, findings, 1)
        for name, patches, findings in (
            ("members are not checked", _members_are_not_checked, _HOLDERS),
            ("identity by name", _identity_by_name, _HOLDERS),
            ("memory back trusted", _memory_back_trusted, _HOLDERS),
            ("eviction overlooked", _eviction_overlooked, _HOLDERS),
            ("counter on each node", _counter_on_each_node, _HOLDERS),
            ("instant ahead believed", _instant_ahead_believed, _NO_VOTE),
            (
                "lock outlasts a clock set back",
                *(_lock_outlasts_a_clock_set_back, _LEFT),
            ),
            *(
                (name, bug, _HOLDERS)
                for name, bug in (
                    ("start trusted after a vote", _start_trusted_after_a_vote),
                    ("start of a replica trusted", _start_of_a_replica_trusted),
                )
            ),
            ("open lifts a quarantine", _open_lifts_quarantine, _HOLDERS),
            ("newcomer waits alone", _newcomer_waits_alone, _HOLDERS),
            ("one member confirms", _one_confirms, _HOLDERS),
            ("renewal without a vote", _renewal_without_vote, _HOLDERS),
            ("recovery before the quarantine", _recovery_before_quarantine, _LOWER),
        )
    )
}
