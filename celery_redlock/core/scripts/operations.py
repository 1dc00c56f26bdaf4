"""The scripts stated in Python, over any store that can run one of them atomically.

There is one function per Lua file, of the same name. It takes the keyspace, KEYS and
ARGV, and returns the reply that a Redis server would send: an int or a list of ints and
bytes. The contract suite runs the same calls on these functions and on real servers.

A `Keyspace` is what a store has to provide. ``testing.memory_node`` is one in memory. A
store such as PostgreSQL runs each function in one transaction.

Lua counts in doubles, so these functions do too: above 2**53 they round as a server
rounds.
"""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock.core.scripts.registry import (
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    TAKEN,
    UNSYNCED,
)
from celery_redlock.core.view import JOINED, View

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from celery_redlock.core.view import Member

    Words = Sequence[bytes]
    Reply = list[Any]

__all__ = [
    "Keyspace",
    "WrongType",
    "abort",
    "acquire",
    "acquire_permits",
    "claim",
    "close",
    "cool_down",
    "counters",
    "enter_successor",
    "extend",
    "force_release",
    "initialize",
    "inspect",
    "inspect_permits",
    "join",
    "join_backlog",
    "join_permit_queue",
    "join_wait_queue",
    "keep_claim",
    "leave_backlog",
    "leave_wait_queue",
    "list_releases",
    "list_standbys",
    "mark_slot",
    "note",
    "note_published",
    "note_run",
    "open",
    "raise_fence",
    "read_backlog",
    "read_slots",
    "record_slots",
    "record_standby",
    "release",
    "release_claim",
    "reopen",
    "request_cancel",
    "restore",
    "start_successor",
    "sync",
    "wake_first",
    "withdraw_successor",
]

_FORMAT = b"format 4, "
_GUARD_OFF = b"restart guard off"  # in the view of a node
_JOINED = JOINED.encode()
# What a node forgets when it joins anew.
_OF_A_VIEW = (
    *(b"votes", b"quarantine_until", b"quarantine_ms"),
    *(b"view", b"aborted", b"started"),
)
_KNOWN = b"known:"  # with a label: since when the node knows the member there
_OWN_TIME = -1.0  # in place of a hint
_NUMBER = re.compile(rb"\n(\d+)")
_CANCELLED = re.compile(rb"\ncancelled ([^\n]*)\Z")
_ASKED_TO_END = re.compile(rb"\ncancelled [^\n]*\Z")
_HOLDER_LINES = 7  # of the value of a lock, at least
_TOGETHER = re.compile(rb"\n(key .*)\Z", re.DOTALL)  # lines that name several keys
_REGISTERED = re.compile(rb"([^\n]*)\n(\d+)\n[^\n]*\n([A-Za-z]+)\n?(\d*)\Z")
_LEAST_NUMBER = 1e12  # of a published call; below are the other scores
_KEPT_US = 60_000_000  # that a call has ended
_NO_KEY = -2  # as PTTL says it
_FREE_PERMIT, _UNKNOWN_HOLDER = b"--------", b"????????"
_TOKEN_LENGTH = 49
_PACE = re.compile(rb"(\d+) (\d+)\Z")
_AT_ONCE = 100  # calls that are taken out of a backlog
_JOB = 3  # the line of a value that names the job


class WrongType(Exception):  # noqa: N818  (Redis calls it WRONGTYPE)
    """The key holds a value of another type. The operation ends with this error."""

    def __init__(self) -> None:
        super().__init__(
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        )


class Keyspace(Protocol):
    """The keys of one node: strings, hashes and sorted sets that can expire.

    Names and values are bytes, durations are milliseconds. The methods have the names
    of the Redis commands. While one operation runs, no other operation sees or changes
    the keys, and a key that has not expired at its start does not expire.

    Raises:
        WrongType: From every method that reads or changes a key of another type.
    """

    @property
    def run_id(self) -> bytes:
        """Another name after each start that may have lost keys (INFO)."""

    @property
    def replid(self) -> bytes:
        """Another name after replication may have replaced keys; b"": none can."""

    def proven_start_ms(self) -> int | None:
        """Return when the process began, if it proves that it has never voted.

        In milliseconds since 1970, as ``shared/proof.lua`` does.
        """

    def note_vote(self) -> None:
        """Note that the process votes, where no loss of keys removes it."""

    def may_be_copy(self) -> bool:
        """Tell whether the keys may be those of another server, which lives on."""

    def now_us(self) -> int:
        """Return microseconds since 1970 by the clock of the node (TIME)."""

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message and return how many subscribers get it (PUBLISH)."""

    def get(self, name: bytes) -> bytes | None:
        """Return a string (GET)."""

    def mget(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return strings; None for other types, too (MGET)."""

    def set(self, name: bytes, value: bytes, *, px: int) -> None:
        """Store a string for ``px`` milliseconds, over any type (SET PX)."""

    def replace(self, name: bytes, value: bytes) -> None:
        """Store a string and keep the ttl of the key (SET KEEPTTL)."""

    def delete(self, name: bytes) -> None:
        """Delete a key of any type (DEL)."""

    def pttl(self, name: bytes) -> int:
        """Return the milliseconds left; -1 without a ttl, -2 for no key (PTTL)."""

    def pexpire(self, name: bytes, milliseconds: int) -> None:
        """Set the ttl of a key, if it exists; 0 deletes it (PEXPIRE)."""

    def hget(self, name: bytes, field: bytes) -> bytes | None:
        """Return one field of a hash (HGET)."""

    def hgetall(self, name: bytes) -> Mapping[bytes, bytes]:
        """Return a hash, empty if there is none (HGETALL)."""

    def hset(self, name: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Set fields of a hash (HSET)."""

    def hdel(self, name: bytes, field: bytes) -> None:
        """Delete one field of a hash, and the hash with its last field (HDEL)."""

    def zadd(self, name: bytes, member: bytes, score: float) -> None:
        """Set the score of a member of a sorted set (ZADD)."""

    def zrem(self, name: bytes, member: bytes) -> None:
        """Remove a member of a sorted set (ZREM)."""

    def zset(self, name: bytes) -> Mapping[bytes, float]:
        """Return a sorted set, least score first (ZRANGE WITHSCORES)."""

    def zpopmin(self, name: bytes) -> bytes | None:
        """Remove and return the member of the least score, then name (ZPOPMIN)."""

    def zcard(self, name: bytes) -> int:
        """Return how many members a sorted set has (ZCARD)."""

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many members come before this one (ZRANK)."""

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this (ZRANGEBYSCORE)."""


# -- the lock ------------------------------------------------------------------


def acquire(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Take the locks, if this node may vote and no other holder has one of them.

    All or none. The same token again is granted again, with the same number.
    """
    return _acquire(store, keys, args, args[6:], [])


def acquire_permits(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Take one permit of each limit: `acquire` of the locks that the client has chosen.

    Who does not get them is told which permits have a holder.
    """
    locks = len(keys) - 1
    stripes, limits = args[6 : 6 + locks], args[6 + locks :]
    reply = _acquire(store, keys, args, stripes, limits[2::3])
    if reply[0] == TAKEN:
        reply.append(_permits_in_use(store, limits)[0])
    return reply


def _acquire(
    store: Keyspace, keys: Words, args: Words, stripes: Words, ttls: Words
) -> Reply:
    """Do what both of them do: ``shared/asked.lua`` and ``shared/grant.lua``."""
    *locks, meta = keys
    token, holder_info, ttl_ms, hint_us, tolerance_us, view, *_ = args
    state = store.hgetall(meta)
    if refused := _refusal(store, state, view):
        return refused
    ours, taken = _held(store, locks, token)
    if taken:
        return taken
    ttls = ttls or [ttl_ms] * len(locks)
    if len(ours) == len(locks):
        for lock, its_ttl in zip(locks, ttls, strict=True):
            store.pexpire(lock, int(its_ttl))
        found = _NUMBER.search(_one_of(ours))
        return [GRANTED, int(_number(found[1]))] if found else [GRANTED]
    number = max(_number(state.get(field)) for field in (b"floor", *stripes)) + 1
    if _number(hint_us) == _OWN_TIME:
        number = max(number, float(store.now_us()))
    elif abs(_number(hint_us) - store.now_us()) <= _number(tolerance_us):
        number = max(number, _number(hint_us))
    value = b"\n".join((token, _digits(number), holder_info))
    for lock, stripe, its_ttl in zip(locks, stripes, ttls, strict=True):
        store.hset(meta, {stripe: _digits(number)})
        kept = b"" if its_ttl == ttl_ms else b"\nkept"
        store.set(lock, value + kept, px=int(its_ttl))
    return [GRANTED, int(number)]


def inspect_permits(store: Keyspace, _keys: Words, args: Words) -> Reply:
    """Return which permits have a holder. Changes nothing."""
    return [GRANTED, 0, _permits_in_use(store, args)[0]]


def _permits_in_use(store: Keyspace, limits: Words) -> tuple[bytes, list[bool]]:
    """Return who holds the permits, and of each limit whether all have a holder.

    This is ``shared/permits.lua``.
    """
    texts, full = [], []
    for head, names in _permits_of(limits):
        holders = list(map(_holder_told, store.mget(names)))
        full.append(_FREE_PERMIT not in holders)
        if head.endswith(b"@@"):
            ttls = [max(0, store.pttl(name)) for name in names]
            holders = [b"%s%012d" % told for told in zip(holders, ttls, strict=True)]
        texts += holders
    return b"".join(texts), full


def _permits_of(limits: Words) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the head of each limit, and the names of its permits."""
    for place in range(0, len(limits), 3):
        head, most = limits[place], int(limits[place + 1])
        names = [b"%s%d" % (head, number) for number in range(1, most + 1)]
        if head.endswith(b"##"):
            names[0] = head[:-2]
        yield head, names


def _first_end(store: Keyspace, names: list[bytes]) -> int:
    """Return the ttl_ms of the permit that ends first; -1 if none has one."""
    return min((ttl for ttl in map(store.pttl, names) if ttl >= 0), default=-1)


def _holder_told(value: bytes | None) -> bytes:
    """Return what is told of the holder of a permit."""
    if value is None:
        return _FREE_PERMIT
    told = value[41:49]
    return told if len(value) >= _TOKEN_LENGTH else _UNKNOWN_HOLDER


def extend(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Renew the ttl of the locks, if all are still ours. Never creates one.

    A node that does not vote yet renews locks that it still has, for clients with its
    view. One that may have the keys of another server does not.
    """
    *locks, meta, releases = keys
    view, token, ttl_ms = args
    state = store.hgetall(meta)
    refused = _refusal(store, state, view)
    if refused:
        is_whole = {b"identity", *_present_names(store)} <= state.keys()
        if state.get(b"config") != view or not is_whole or store.may_be_copy():
            return refused
    ours, taken = _held(store, locks, token)
    if refused:
        if len(ours) < len(locks):
            return refused
        store.note_vote()
    if len(ours) < len(locks):
        record = None
        with contextlib.suppress(WrongType):
            record = store.hget(releases, token)
        return (taken or [FREE]) + ([] if record is None else [record])
    for lock in locks:
        store.pexpire(lock, int(ttl_ms))
    cancelled = _CANCELLED.search(_one_of(ours))
    return [GRANTED, 0, cancelled[1]] if cancelled else [GRANTED, 0]


def restore(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Write the locks of a valid lease on a node that votes and is without one of them.

    The node's fence counters are raised with it, as if the node had granted the locks.
    A cancel request that the node has stays.
    """
    *locks, meta = keys
    view, token, holder_info, ttl_ms, number, *stripes = args
    if refused := _refusal(store, store.hgetall(meta), view):
        return refused
    ours, taken = _held(store, locks, token)
    if taken:
        return taken
    value = b"\n".join((token, number, holder_info)) + _asked_of(ours)
    for lock, stripe in zip(locks, stripes, strict=True):
        _raise_counter(store, meta, stripe, _number(number))
        store.set(lock, value, px=int(ttl_ms))
    return [GRANTED, 0]


def raise_fence(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Raise the counters to the fence of a grant, but only while all locks are ours.

    A cancel request stays: it may have come before.
    """
    *locks, meta = keys
    token, holder_info, number, *stripes = args
    ours, _ = _held(store, locks, token)
    if len(ours) < len(locks):
        return [FREE]
    is_raised = False
    for stripe in stripes:
        if _number(store.hget(meta, stripe)) < _number(number):
            store.hset(meta, {stripe: number})
            is_raised = True
    value = b"\n".join((token, number, holder_info)) + _asked_of(ours)
    for lock in locks if is_raised else ():
        store.replace(lock, value)
    return [GRANTED, int(_number(number))]


def release(store: Keyspace, keys: Words, args: Words) -> int:
    """Release the locks that are ours, and wake a waiter of each.

    Twice is harmless.
    """
    token, keep_ms = args
    released = 0
    for lock, wait_queue in _with_queues(keys):
        value = store.get(lock)
        if value is not None and value.startswith(token):
            store.pexpire(lock, int(keep_ms))  # 0 deletes it
            wake_first(store, wait_queue, keep_ms)
            released = 1
    return released


def inspect(store: Keyspace, keys: Words, _args: Words = ()) -> Reply:
    """Return the holders of the locks. Changes nothing."""
    return _held(store, keys)[1] or [FREE]


def _held(
    store: Keyspace, locks: Words, token: bytes | None = None
) -> tuple[list[bytes], Reply | None]:
    """Return the values with this token, and the reply that names all other holders.

    This is ``shared/held.lua``.
    """
    ours, is_taken = [], False
    reply: Reply = [TAKEN]
    for lock in locks:
        value, left = store.get(lock), _NO_KEY
        if value is not None and token is not None and value.startswith(token):
            ours.append(value)
            value = None
        elif value is not None:
            is_taken, left = True, store.pttl(lock)
        reply += [value or b"", left]
    return ours, reply if is_taken else None


def _one_of(ours: list[bytes]) -> bytes:
    """Return one of these values, with a cancel request if one has it."""
    asked = [value for value in ours if _CANCELLED.search(value)]
    return (asked or ours[:1])[-1]


def _asked_of(ours: list[bytes]) -> bytes:
    """Return the line of the cancel request that the holder was sent, or nothing."""
    asked = _ASKED_TO_END.search(_one_of(ours)) if ours else None
    return asked[0] if asked else b""


def _with_queues(keys: Words) -> Iterable[tuple[bytes, bytes]]:
    """Yield each lock with its wait queue. The queues are the second half of KEYS."""
    half = len(keys) // 2
    return zip(keys[:half], keys[half:], strict=True)


def request_cancel(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Ask the holder of the lock to end, if it is still this one.

    The request is the last line of the lock's value. `extend` returns it to the holder.
    """
    (lock,), (token, who) = keys, args
    value = store.get(lock)
    if value is None or not value.startswith(token):
        return inspect(store, [lock])
    _ask_to_end(store, lock, value, who)
    return [GRANTED, 0]


def force_release(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Release the locks because an operator decided to, and record that.

    A record ends after its ttl, or when there are too many later ones. The release does
    not depend on its record, so a key of another type does not fail it.
    """
    *locks, releases = keys
    token, name, record, ttl_ms, most = args
    reply = [FREE]
    for lock, wait_queue in _with_queues(locks):
        value = store.get(lock)
        if value is not None and value.startswith(token):
            store.delete(lock)
            wake_first(store, wait_queue, b"0")
            reply = [GRANTED, 0]
    now_ms = store.now_us() // 1000
    head = b"%d\n%d\n" % (now_ms + int(ttl_ms), reply[0] == GRANTED)
    with contextlib.suppress(WrongType):
        store.hset(releases, {name: head + record})
        store.pexpire(releases, int(ttl_ms))
        known = store.hgetall(releases)
        kept = sorted((_until_ms(text), name) for name, text in known.items())
        too_many = max(0, len(kept) - int(most))
        for index, (until_ms, name) in enumerate(kept):
            if until_ms <= now_ms or index < too_many:
                store.hdel(releases, name)
    return reply


def list_releases(store: Keyspace, keys: Words, _args: Words = ()) -> Reply:
    """Return the releases that operators forced. Changes nothing."""
    now_ms = store.now_us() // 1000
    found = store.hgetall(keys[0]).items()
    alive = {name: text for name, text in found if _until_ms(text) > now_ms}
    return [GRANTED, *_flat(alive)]


# -- the wait queue ------------------------------------------------------------


def join_wait_queue(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Join the wait queue of each lock, or keep one's place, and return the holders.

    A waiter for several locks that finds one free and another one held passes the
    wake-up of the free one on, to a waiter behind it.
    """
    waiter, rank, ttl_ms = args
    pairs = list(_with_queues(keys))
    taken = inspect(store, [lock for lock, _ in pairs])
    for place, (_, wait_queue) in enumerate(pairs):
        is_new = waiter not in store.zset(wait_queue)
        store.zadd(wait_queue, waiter, float(rank))
        store.pexpire(wait_queue, int(ttl_ms))
        if taken[0] == TAKEN and is_new and taken[2 * place + 2] == _NO_KEY:
            wake_first(store, wait_queue, b"0", behind=float(rank))
    return taken


def join_permit_queue(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Join the wait queue of each limit, and return which permits have a holder.

    It tells in how many milliseconds a permit of each limit ends by itself, where all
    have a holder. A waiter for several limits that finds one free and another one full
    passes the wake-up of the free one on, to a waiter behind it.
    """
    waiter, rank, ttl_ms, *limits = args
    in_use, full = _permits_in_use(store, limits)
    reply: Reply = [GRANTED, 0]
    for wait_queue, is_full, of in zip(keys, full, _permits_of(limits), strict=True):
        reply.append(_first_end(store, of[1]) if is_full else -1)
        is_new = waiter not in store.zset(wait_queue)
        store.zadd(wait_queue, waiter, float(rank))
        store.pexpire(wait_queue, int(ttl_ms))
        if any(full) and is_new and not is_full:
            wake_first(store, wait_queue, b"0", behind=float(rank))
    return [*reply, in_use]


def leave_wait_queue(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Leave the wait queues. A waiter that leaves without the locks wakes the next."""
    waiter, free_in_ms = args
    for lock, wait_queue in _with_queues(keys):
        store.zrem(wait_queue, waiter)
        if free_in_ms and (free_in_ms != b"0" or store.get(lock) is None):
            wake_first(store, wait_queue, free_in_ms)
    return [GRANTED, 0]


def wake_first(
    store: Keyspace,
    wait_queue: bytes,
    free_in_ms: bytes,
    *,
    behind: float | None = None,
) -> None:
    """Wake the first waiter whose process still listens; remove those before it.

    With ``behind`` it is the first of those that come after this rank. This is
    ``shared/wake_first.lua``. The lock does not depend on the queue, so a key of
    another type does not fail the operation.
    """
    with contextlib.suppress(WrongType):
        while (waiter := _pop(store, wait_queue, behind)) is not None:
            channel, slash, name = waiter.rpartition(b"/")
            if slash and store.publish(channel, name + b" " + free_in_ms):
                return


def _pop(store: Keyspace, wait_queue: bytes, behind: float | None) -> bytes | None:
    if behind is None:
        return store.zpopmin(wait_queue)
    for waiter, rank in store.zset(wait_queue).items():
        if rank > behind:
            store.zrem(wait_queue, waiter)
            return waiter
    return None


# -- membership ----------------------------------------------------------------


def join(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Give an identity to a server without memory, or that is to forget its view.

    Tell what the node knows of itself. Never send the same random part twice.
    """
    (meta,) = keys
    random, forget = args
    state = store.hgetall(meta)
    if _is_without_memory(store, state) or state[b"config"] == forget:
        started = store.proven_start_ms()
        for field in _OF_A_VIEW:
            store.hdel(meta, field)
        # Servers that get the same message have different run ids.
        identity = random + store.run_id[:8]
        fields = {b"config": _JOINED, b"identity": identity, **_present_names(store)}
        if started is not None:
            fields[b"started"] = b"%d" % started
        store.hset(meta, fields)
        return [GRANTED, 0, _JOINED, identity, 0, b"", b""]
    _begin_waits_anew(store, meta, state)
    names = (b"identity", b"view", b"aborted")
    identity, view, aborted = (state.get(name, b"") for name in names)
    votes = int(b"votes" in state)
    return [GRANTED, 0, state[b"config"], identity, votes, view, aborted]


def note(store: Keyspace, keys: Words, args: Words) -> Reply:  # noqa: PLR0911
    """Note a view: enter it as a new member, or learn that another was replaced.

    Within an epoch a view only grows. A node that enters a view does not vote. From one
    view to that of another epoch goes only a first member of a founded epoch.
    """
    (meta,), (text, quarantine_ms) = keys, args
    state = store.hgetall(meta)
    if _is_without_memory(store, state):
        return [UNSYNCED, b""]
    config = state[b"config"]
    if config == text:
        return [GRANTED, 0]
    old, new = _view(config), _view(text)
    member = _own_member(new, state)
    if member is None or new is None or (old is None and config != _JOINED):
        return [MISCONFIGURED, config]
    if old and old.is_same_epoch(new):
        labels = new.configuration.labels
        if old.configuration != new.configuration:
            return [MISCONFIGURED, config]
        places = list(zip(labels, old.members, new.members, strict=True))
        if any(after < before for _, before, after in places):
            return [MISCONFIGURED, config]
        replaced = [label for label, before, after in places if before < after]
        _store_view(store, meta, text, replaced, _now_ms(store))
        return [GRANTED, 0]
    is_first = member.number == 0
    if is_first and not new.is_founded:
        return [MISCONFIGURED, config]
    if old and (
        not is_first
        or (b"votes" in state and old.deployment != new.deployment)
        or new.order < old.order
    ):
        return [MISCONFIGURED, config]
    since = _now_ms(store)
    if config == _JOINED and b"started" in state:
        since = min(since, int(_number(state[b"started"])))
    _store_view(store, meta, text, new.configuration.labels, since)
    store.hdel(meta, b"votes")
    store.hdel(meta, b"started")
    until = b"%d" % (since + int(quarantine_ms))
    store.hset(meta, {b"quarantine_ms": quarantine_ms, b"quarantine_until": until})
    return [GRANTED, 0]


def counters(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Read all fence counters of a node, and for how many ms it knows each member.

    A node that does not vote says so, and tells the same.
    """
    (meta,), (view,) = keys, args
    state = store.hgetall(meta)
    reply = _refusal(store, state, view) or [GRANTED, 0]
    if reply[0] == MISCONFIGURED or reply[1] == b"":
        return reply
    now_ms = store.now_us() // 1000
    for field, number in state.items():
        if field.startswith(_KNOWN):
            reply += [field, b"%d" % (now_ms - int(number))]
        elif field == b"floor" or field.isdigit():
            reply += [field, number]
    return reply


def sync(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Let a node vote that others have confirmed, above their fence counters.

    Refused while its quarantine lasts, and when it has another view or identity by now.
    """
    (meta,) = keys
    view, identity, set_floor, tolerance_us, *pairs = args
    state = store.hgetall(meta)
    refused, present = _refusal(store, state, view), state.get(b"identity")
    if present != identity:
        return refused or [UNSYNCED, present]
    if not refused:
        return [GRANTED, 0]
    is_joined = state.get(b"config") == _JOINED
    if refused[0] != UNSYNCED or refused[1] == b"" or is_joined:
        return refused
    _raise_counters(store, meta, pairs)
    if set_floor == b"1":
        floor = store.now_us() + _number(tolerance_us)
        _raise_counter(store, meta, b"floor", floor)
    store.hset(meta, {b"votes": b"1"})
    store.note_vote()
    store.hdel(meta, b"quarantine_until")
    store.hdel(meta, b"quarantine_ms")
    return [GRANTED, 0]


def initialize(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Let a node without view vote at once in a new deployment, above its TIME."""
    (meta,) = keys
    view, hint_us, tolerance_us = args
    state = store.hgetall(meta)
    refused = _refusal(store, state, view)
    if not refused:
        return [GRANTED, 0]
    new = _view(view)
    member, is_joined = _own_member(new, state), state.get(b"config") == _JOINED
    if not is_joined or refused[1] == b"" or not member or member.number:
        return refused
    floor, tolerance = float(store.now_us()), _number(tolerance_us)
    if abs(_number(hint_us) - floor) <= tolerance:
        floor = _number(hint_us) + tolerance
    _raise_counter(store, meta, b"floor", floor + tolerance)
    _store_view(store, meta, view, _labels(new), _now_ms(store))
    store.hset(meta, {b"votes": b"1"})
    store.note_vote()
    return [GRANTED, 0]


def close(store: Keyspace, keys: Words, args: Words) -> Reply:  # noqa: PLR0911
    """Take a member out of its view, or a server without view, for a planned view.

    It neither grants nor renews, and remembers the view that it had.
    """
    (meta,) = keys
    old, closed, planned, quarantine_ms = args
    state = store.hgetall(meta)
    if _is_without_memory(store, state):
        return [UNSYNCED, b""]
    config = state[b"config"]
    if config == planned:
        return [GRANTED, 0]
    if _is_aborted(state, closed):
        return [MISCONFIGURED, b"aborted"]
    if config == closed:
        left = _quarantine_left(store, state)
        return [QUARANTINED, left] if left else [FREE]
    if config == old:
        if b"votes" not in state:
            return [UNSYNCED, state[b"identity"]]
        until = b"%d" % (store.now_us() // 1000 + int(quarantine_ms))
        fields = {b"config": closed, b"view": old, b"quarantine_until": until}
        fields[b"quarantine_ms"] = quarantine_ms
        # Without the guard, the names may be those of an earlier process.
        store.hset(meta, {**fields, **_present_names(store)})
        store.hdel(meta, b"votes")
        return [QUARANTINED, int(quarantine_ms)]
    was_aborted = b"view" not in state and _is_aborted(state, config)
    is_free = config == _JOINED or was_aborted
    if not is_free or not _own_member(_view(planned), state):
        return [MISCONFIGURED, config]
    store.hset(meta, {b"config": closed})
    return [FREE]


def open(store: Keyspace, keys: Words, args: Words) -> Reply:  # noqa: A001
    """Let a closed node vote in the planned view, above these fences.

    Only the server that was planned, whose old locks have ended, is opened.
    """
    (meta,) = keys
    closed, planned, *pairs = args
    state = store.hgetall(meta)
    if _is_without_memory(store, state):
        return [UNSYNCED, b""]
    config, new = state[b"config"], _view(planned)
    if config == planned:
        return [GRANTED, 0]
    is_planned = _own_member(new, state) is not None
    if config != closed or _is_aborted(state, closed) or not is_planned:
        return [MISCONFIGURED, config]
    if left := _quarantine_left(store, state):
        return [QUARANTINED, left]
    _raise_counters(store, meta, pairs)
    _store_view(store, meta, planned, _labels(new), _now_ms(store))
    store.hset(meta, {b"votes": b"1"})
    store.note_vote()
    store.hdel(meta, b"view")
    store.hdel(meta, b"quarantine_until")
    store.hdel(meta, b"quarantine_ms")
    return [GRANTED, 0]


def abort(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Remember on a planned member that the reconfiguration is aborted.

    Refused where it was opened: the member may be closed for a later one by now.
    """
    (meta,), (closed, planned) = keys, args
    state = store.hgetall(meta)
    if _is_without_memory(store, state):
        return [UNSYNCED, b""]
    new = _view(planned)
    present = _view(state[b"config"]) or _view(state.get(b"view", b""))
    if new is None or not _own_member(new, state):
        return [MISCONFIGURED, state[b"config"]]
    if present and present.deployment == new.deployment and present.order >= new.order:
        return [MISCONFIGURED, state[b"config"]]
    _mark_aborted(store, meta, state, closed)
    return [GRANTED, 0]


def reopen(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Let a closed node vote again in the view that it had, after an abort."""
    (meta,), (closed, *pairs) = keys, args
    state = store.hgetall(meta)
    if _is_without_memory(store, state):
        return [UNSYNCED, b""]
    if state[b"config"] != closed or b"view" not in state:
        return [FREE]
    _mark_aborted(store, meta, state, closed)
    _raise_counters(store, meta, pairs)
    store.hset(meta, {b"config": state[b"view"], b"votes": b"1"})
    store.note_vote()
    store.hdel(meta, b"view")
    store.hdel(meta, b"quarantine_until")
    store.hdel(meta, b"quarantine_ms")
    return [GRANTED, 0]


# -- records of jobs -----------------------------------------------------------


def note_published(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Number a call that its publisher has sent, unless it has started or ended.

    If it is to replace the running call, ask the holder of the lock to end.
    """
    (register, published, lock), (call_id, expires, ttl_ms, who) = keys, args
    noted = store.zset(published)
    if call_id in noted or b"ended " + call_id in noted:
        return [GRANTED, 0]
    before = [max(noted.values(), default=0.0)]
    if found := _REGISTERED.match(store.get(register) or b""):
        before += [float(found[2]), float(found[4] or 0)]
    number = max(store.now_us(), *(one + 1 for one in before))
    store.zadd(published, call_id, number)
    if float(expires) > 0:
        store.zadd(published, b"expires " + call_id, float(expires))
    for member, score in dict(store.zset(published)).items():
        if _LEAST_NUMBER <= score <= number - int(ttl_ms) * 1000:
            store.zrem(published, member)
    store.pexpire(published, max(int(ttl_ms), store.pttl(published)))
    held = store.get(lock) if who else None
    if held and held.split(b"\n")[_JOB : _JOB + 1] not in ([], [call_id]):
        _ask_to_end(store, lock, held, who)
    return [GRANTED, round(number)]


def enter_successor(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Register this call as the successor, unless a call that comes before it is."""
    *call, holder = args
    return _register(store, keys, call, holder) or [GRANTED, 0]


def start_successor(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Register this call as running, unless one that comes before waits or has run."""
    if reply := _register(store, keys, args, None):
        return reply
    register, published = keys
    _, number, *_ = (store.get(register) or b"").split(b"\n")
    latest = max(store.zset(published).values(), default=0.0)
    started = max(store.now_us(), latest, float(number))
    entry = (store.get(register) or b"").rpartition(b"\n")[0]
    entry += b"\nruns\n" + _digits(started)
    store.set(register, entry, px=int(args[4]))
    _end_published(store, published, args[0])
    return [GRANTED, 0]


def withdraw_successor(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Remove this call from the register. Twice is harmless."""
    (register, published), (call_id,) = keys, args
    _end_published(store, published, call_id)
    if not _begins_with_line(store.get(register), call_id):
        return [FREE]
    store.delete(register)
    return [GRANTED, 0]


def claim(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Claim a call for a job, if this node may vote and knows no other job of it.

    The same job again is granted again.
    """
    claimed, lock, cooldown, meta = keys
    view, job, holder_info, ttl_ms, check_lock, check_cooldown, together = args
    if refused := _refusal(store, store.hgetall(meta), view):
        return refused
    checked = [claimed]
    if check_lock == b"1":
        checked += [lock] if _keys_in(store.get(lock) or b"") == together else []
    checked += [cooldown] if check_cooldown == b"1" else []
    for name in checked:
        lines = (store.get(name) or b"").split(b"\n")
        if len(lines) > _JOB and lines[_JOB] not in (b"", job):
            return [TAKEN, b"\n".join((lines[_JOB], *lines[1:])), store.pttl(name)]
    store.set(claimed, b"\n".join((job, b"0", holder_info)), px=int(ttl_ms))
    return [GRANTED, 0]


def _keys_in(value: bytes) -> bytes:
    """Return the lines that name several keys: behind the seven about the holder."""
    lines = _ASKED_TO_END.sub(b"", value).split(b"\n", _HOLDER_LINES)
    found = _TOGETHER.search(b"\n" + lines[-1]) if len(lines) > _HOLDER_LINES else None
    return found[1] if found else b""


def keep_claim(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Renew the ttl of the claim of a job. Never creates a claim."""
    (claimed, meta), (view, job, ttl_ms) = keys, args
    if refused := _refusal(store, store.hgetall(meta), view):
        return refused
    if not _begins_with_line(store.get(claimed), job):
        return [FREE]
    store.pexpire(claimed, int(ttl_ms))
    return [GRANTED, 0]


def release_claim(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Release the claim of a job. Twice is harmless."""
    (claimed,), (job, *of_task) = keys, args
    value = store.get(claimed)
    if value is None or not _begins_with_line(value, job):
        return [FREE]
    _, _, task, *_ = (*value.split(b"\n"), b"", b"")
    if any(of_task) and of_task != [task]:
        return [FREE]
    store.delete(claimed)
    return [GRANTED, 0]


def cool_down(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Record that a job of the call has succeeded, in place of an earlier one."""
    (cooldown,), (job, holder_info, ttl_ms) = keys, args
    store.set(cooldown, b"\n".join((job, b"0", holder_info)), px=int(ttl_ms))
    return [GRANTED, 0]


# -- records of schedulers -----------------------------------------------------


def record_slots(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Record up to which instant the slots of schedule entries are done. Only grows."""
    (slots,) = keys
    ttl_ms, *pairs = args
    for name, instant in zip(pairs[::2], pairs[1::2], strict=True):
        if not instant:
            store.hdel(slots, name)
        elif _number(instant) > _number(store.hget(slots, name)):
            store.hset(slots, {name: instant})
    store.pexpire(slots, int(ttl_ms))
    return [GRANTED, 0]


def read_slots(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Read what RECORD_SLOTS wrote, unless this node may have forgotten some of it."""
    slots, meta = keys
    (view,) = args
    refused = _refusal(store, store.hgetall(meta), view)
    return refused or [GRANTED, *_flat(store.hgetall(slots))]


def mark_slot(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Mark a slot as run by this task, unless another task has marked it."""
    (mark,), (task_id, ttl_ms) = keys, args
    known = store.get(mark)
    if known not in (None, task_id):
        return [TAKEN, known, store.pttl(mark)]
    store.set(mark, task_id, px=int(ttl_ms))
    return [GRANTED, 0]


def record_standby(store: Keyspace, keys: Words, args: Words) -> Reply:
    """List this process as a standby. Removes standbys whose time has ended."""
    (standbys,), (standby, ttl_ms) = keys, args
    now_ms = store.now_us() // 1000
    for name, until_ms in list(store.hgetall(standbys).items()):
        if int(until_ms) <= now_ms or name == standby:
            store.hdel(standbys, name)
    if ttl_ms != b"0":
        store.hset(standbys, {standby: b"%d" % (now_ms + int(ttl_ms))})
        store.pexpire(standbys, max(store.pttl(standbys), int(ttl_ms)))
    return [GRANTED, 0]


def list_standbys(store: Keyspace, keys: Words, _args: Words = ()) -> Reply:
    """Return the standbys. Changes nothing."""
    now_ms = store.now_us() // 1000
    listed = store.hgetall(keys[0]).items()
    return [GRANTED, *(name for name, until_ms in listed if int(until_ms) > now_ms)]


# -- the backlog of a key --------------------------------------------------------


def join_backlog(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Join the backlog of a key, or keep one's place in it, and tell the place.

    A call that has not joined again by its deadline is taken out: it was purged, or is
    lost.
    """
    backlog, returns, pace = keys
    task_id, since, within = args
    within_us = _number(within)
    now = store.now_us()
    for gone in store.zrangebyscore(returns, now, _AT_ONCE):
        store.zrem(backlog, gone)
        store.zrem(returns, gone)
    _, run_us = _read_pace(store, pace)
    store.zadd(backlog, task_id, _number(since))
    before = store.zrank(backlog, task_id) or 0
    store.zadd(returns, task_id, now + within_us)
    ttl_ms = max(math.ceil(within_us / 1000), store.pttl(returns))
    store.pexpire(backlog, ttl_ms)
    store.pexpire(returns, ttl_ms)
    return [GRANTED, before, store.zcard(backlog), run_us]


def leave_backlog(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Leave the backlogs of some keys. Twice is harmless."""
    for name in keys:
        store.zrem(name, args[0])
    return [GRANTED, 0]


def read_backlog(store: Keyspace, keys: Words, _args: Words = ()) -> Reply:
    """Tell how many calls are in the backlog, and how long runs took lately."""
    backlog, pace = keys
    _, run_us = _read_pace(store, pace)
    return [GRANTED, store.zcard(backlog), run_us]


def note_run(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Count a run of each of some keys in the mean of how long their runs took lately.

    It is the mean of the first ones, then one in which earlier runs count ever less.
    """
    run_us, most, ttl_ms = map(int, args)
    for pace in keys:
        runs, mean_us = _read_pace(store, pace)
        runs = min(runs + 1, most)
        mean_us = max(1, mean_us + math.floor((run_us - mean_us) / runs))
        store.set(pace, b"%d %d" % (runs, mean_us), px=ttl_ms)
    return [GRANTED, 0]


def _read_pace(store: Keyspace, pace: bytes) -> tuple[int, int]:
    """Return how many runs were counted, and their mean; ``shared/read_pace.lua``."""
    found = _PACE.match(store.get(pace) or b"")
    return (int(found[1]), int(found[2])) if found else (0, 0)


# -- shared parts --------------------------------------------------------------


def _number(text: bytes | None) -> float:
    """Return Lua's ``tonumber(text) or 0``."""
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0


def _until_ms(record: bytes) -> int:
    """Return the first line of a record: when it ends, in milliseconds since 1970."""
    return int(_number(record.partition(b"\n")[0]))


def _now_ms(store: Keyspace) -> int:
    return store.now_us() // 1000


def _digits(number: float) -> bytes:
    return b"%.0f" % number


def _flat(fields: Mapping[bytes, bytes]) -> list[bytes]:
    return [word for pair in fields.items() for word in pair]


def _begins_with_line(value: bytes | None, line: bytes) -> bool:
    return value is not None and value.partition(b"\n")[0] == line


def _is_without_memory(store: Keyspace, state: Mapping[bytes, bytes]) -> bool:
    """Tell whether the server has lost its identity, or its process or data changed.

    What another version of celery-redlock stored is never lost.
    """
    config = state.get(b"config")
    if config is None:
        return True
    if _FORMAT not in config:
        return False
    names = _present_names(store)
    if not {b"identity", *names} <= state.keys():
        return True  # a part of a memory is none
    return _GUARD_OFF not in config and not names.items() <= state.items()


def _present_names(store: Keyspace) -> dict[bytes, bytes]:
    """Return the names of the server process, and of its data if these can change."""
    replid = {b"replid": store.replid} if store.replid else {}
    return {b"run_id": store.run_id, **replid}


def _refusal(store: Keyspace, state: Mapping[bytes, bytes], view: bytes) -> Reply:
    """Return why the node has no vote for a client with this view; [] if it has."""
    if _is_without_memory(store, state):
        return [UNSYNCED, b""]
    if state[b"config"] == _JOINED:
        return [UNSYNCED, state[b"identity"]]
    if state[b"config"] != view:
        return [MISCONFIGURED, state[b"config"]]
    if b"votes" in state:
        return []
    left = _quarantine_left(store, state)
    return [QUARANTINED, left] if left else [UNSYNCED, state[b"identity"]]


def _quarantine_left(store: Keyspace, state: Mapping[bytes, bytes]) -> int:
    until = state.get(b"quarantine_until")
    return max(0, int(_number(until)) - store.now_us() // 1000) if until else 0


def _begin_waits_anew(
    store: Keyspace, meta: bytes, state: Mapping[bytes, bytes]
) -> None:
    """Bound the instants that a clock has stored that was ahead for a moment."""
    now = _now_ms(store)
    longest, until = state.get(b"quarantine_ms"), state.get(b"quarantine_until")
    if longest and until and _number(until) > now + _number(longest):
        store.hset(meta, {b"quarantine_until": _digits(now + _number(longest))})
    for field, since in dict(state).items():
        if field.startswith(_KNOWN) and _number(since) > now:
            store.hset(meta, {field: b"%d" % now})


def _view(text: bytes) -> View | None:
    return View.parse(text.decode())


def _labels(view: View | None) -> Sequence[str]:
    return view.configuration.labels if view else ()


def _own_member(view: View | None, state: Mapping[bytes, bytes]) -> Member | None:
    """Return the member with the identity of this server."""
    identity = state.get(b"identity", b"").decode()
    members = view.members if view else ()
    return next((m for m in members if m.identity == identity), None)


def _store_view(
    store: Keyspace, meta: bytes, text: bytes, labels: Iterable[str], since_ms: int
) -> None:
    """Store a view, and since when the node knows the members at these labels."""
    known = {_KNOWN + label.encode(): b"%d" % since_ms for label in labels}
    store.hset(meta, {b"config": text, **known})


def _is_aborted(state: Mapping[bytes, bytes], closed: bytes) -> bool:
    return closed + b"\n" in state.get(b"aborted", b"")


def _mark_aborted(
    store: Keyspace, meta: bytes, state: Mapping[bytes, bytes], closed: bytes
) -> None:
    if not _is_aborted(state, closed):
        store.hset(meta, {b"aborted": state.get(b"aborted", b"") + closed + b"\n"})


def _raise_counter(store: Keyspace, meta: bytes, field: bytes, number: float) -> None:
    if _number(store.hget(meta, field)) < number:
        store.hset(meta, {field: _digits(number)})


def _raise_counters(store: Keyspace, meta: bytes, pairs: Words) -> None:
    """Raise counters, as ``shared/raise_counters.lua`` does."""
    for field, word in zip(pairs[::2], pairs[1::2], strict=True):
        number = _number(word)
        if field == b"time":
            _raise_counter(store, meta, b"floor", store.now_us() + number)
        else:
            _raise_counter(store, meta, field, number)


def _register(
    store: Keyspace, keys: Words, call: Words, holder: bytes | None
) -> Reply | None:
    """Enter a call in the register as waiting; reply if another comes before it."""
    register, published = keys
    call_id, published_us, keep, expires, ttl_ms, entered = call
    noted, value = store.zset(published), store.get(register)
    is_noted = noted.get(call_id, 0) > _LEAST_NUMBER
    # A call that has started before (a retry, a redelivery) is as new as that start.
    is_known = call_id in noted
    number = abs(noted[call_id]) if is_known else float(published_us)
    later = is_known and keep == b"latest" and _later_one(noted, number, float(expires))
    if later:
        return _taken(store, keys, call_id, later, number, by_order=True)
    if (found := _REGISTERED.match(value or b"")) and found[1] != call_id:
        comes_before = (float(found[2]), found[1]) > (number, call_id)
        comes_before = comes_before == (keep == b"latest")
        if found[3] == b"runs" or found[1] == holder:
            # It comes only before those that were published or entered at its start.
            if is_noted and keep == b"first" and found[4] and number <= float(found[4]):
                comes_before = True
            elif not (entered == b"1" or (is_noted and keep == b"latest")):
                comes_before = False
        if comes_before:
            return _taken(store, keys, call_id, value or b"", number, by_order=False)
    entry = b"\n".join((call_id, _digits(number), expires, b"waits"))
    store.set(register, entry, px=int(ttl_ms))
    return None


def _taken(  # noqa: PLR0913  (what the reply and the record are made of)
    store: Keyspace,
    keys: Words,
    call_id: bytes,
    before: bytes,
    number: float,
    *,
    by_order: bool,
) -> Reply:
    """Reply that another call comes before; no other call ends because of this one."""
    register, published = keys
    left = store.pttl(published if by_order else register)
    _end_published(store, published, call_id, at=number)
    return [TAKEN, before, left]


def _later_one(noted: Mapping[bytes, float], number: float, expires: float) -> bytes:
    """Return the entry of a call that was published later and expires no earlier."""
    for other, score in [*noted.items()][:-11:-1]:
        if score <= _LEAST_NUMBER or score <= number:
            break
        ends = noted.get(b"expires " + other, 0)
        if not ends or (expires > 0 and ends >= expires):
            return b"\n".join((other, _digits(score), b"%.14g" % ends, b"waits"))
    return b""


def _ask_to_end(store: Keyspace, lock: bytes, value: bytes, who: bytes) -> None:
    """Ask the holder of a lock with this value to end."""
    store.replace(lock, _CANCELLED.sub(b"", value) + b"\ncancelled " + who)


def _end_published(
    store: Keyspace, published: bytes, call_id: bytes, *, at: float = 0.0
) -> None:
    """Note that a call has started or ended: now, or for the order at another time."""
    now = store.now_us()
    if store.zset(published).get(call_id, 0) >= 0:  # else as new as its first start
        store.zadd(published, call_id, -(at or now))
    if at:
        store.zadd(published, b"ended " + call_id, -now)
    store.zrem(published, b"expires " + call_id)
    for member, score in dict(store.zset(published)).items():
        if _KEPT_US - now <= score <= 0:
            store.zrem(published, member)
    if max(store.zset(published).values(), default=0.0) <= _LEAST_NUMBER:
        store.pexpire(published, _KEPT_US // 1000)
