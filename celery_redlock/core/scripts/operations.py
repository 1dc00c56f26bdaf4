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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Words = Sequence[bytes]
    Reply = list[Any]

__all__ = [
    "Keyspace",
    "WrongType",
    "acquire",
    "claim",
    "close",
    "cool_down",
    "counters",
    "enter_successor",
    "extend",
    "initialize",
    "inspect",
    "join_wait_queue",
    "keep_claim",
    "leave_wait_queue",
    "list_standbys",
    "mark_slot",
    "open",
    "raise_fence",
    "read_slots",
    "record_slots",
    "record_standby",
    "release",
    "release_claim",
    "request_cancel",
    "restore",
    "start_successor",
    "sync",
    "wake_first",
    "withdraw_successor",
]

_GUARD_OFF = b"restart guard off"  # in the configuration of a node
_NUMBER = re.compile(rb"\n(\d+)")
_CANCELLED = re.compile(rb"\ncancelled ([^\n]*)\Z")
_REGISTERED = re.compile(rb"([^\n]*)\n(\d+)\n[^\n]*\n([A-Za-z]+)\Z")
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

    def now_us(self) -> int:
        """Return microseconds since 1970 by the clock of the node (TIME)."""

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message and return how many subscribers get it (PUBLISH)."""

    def get(self, name: bytes) -> bytes | None:
        """Return a string (GET)."""

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

    def zpopmin(self, name: bytes) -> bytes | None:
        """Remove and return the member of the least score, then name (ZPOPMIN)."""


# -- the lock ------------------------------------------------------------------


def acquire(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Take the lock, if this node may vote and no other holder has it.

    The same token again is granted again, with the same number.
    """
    lock, meta = keys
    token, holder_info, ttl_ms, stripe, hint_us, tolerance_us = args[:6]
    config, quarantine_ms = args[6:]
    known = store.hgetall(meta)
    if known.get(b"config", config) != config:
        return [MISCONFIGURED, known[b"config"]]
    refusal = _admission(store, meta, known, (config, token, quarantine_ms))
    if refusal:
        return refusal
    value = store.get(lock)
    if value is not None and value.startswith(token):
        store.pexpire(lock, int(ttl_ms))
        found = _NUMBER.search(value)
        return [GRANTED, int(_number(found[1]))] if found else [GRANTED]
    if value is not None:
        return [TAKEN, value, store.pttl(lock)]
    number = max(_number(known.get(stripe)), _number(known.get(b"floor"))) + 1
    if abs(_number(hint_us) - store.now_us()) <= _number(tolerance_us):
        number = max(number, _number(hint_us))
    store.hset(meta, {stripe: _digits(number)})
    value = b"\n".join((token, _digits(number), holder_info))
    store.set(lock, value, px=int(ttl_ms))
    return [GRANTED, int(number)]


def extend(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Renew the ttl of the lock, if it is still ours. Never creates it.

    A node that has lost its memory is quarantined from now on.
    """
    lock, meta = keys
    config, token, ttl_ms, quarantine_ms = args
    other = _other_config(store, meta, config)
    if other == b"" and _GUARD_OFF not in config:
        _begin_quarantine(store, meta, config, token, quarantine_ms)
    elif other:
        return [MISCONFIGURED, other]
    value = store.get(lock)
    if value is None or not value.startswith(token):
        return inspect(store, [lock])
    store.pexpire(lock, int(ttl_ms))
    cancelled = _CANCELLED.search(value)
    return [GRANTED, 0, cancelled[1]] if cancelled else [GRANTED, 0]


def restore(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Write the lock of a valid lease on a node that is without it.

    The node's fence counter is raised with it, as if the node had granted the lock.
    """
    lock, meta = keys
    config, token, holder_info, ttl_ms, stripe, number = args
    other = _other_config(store, meta, config)
    if other is not None:
        return [MISCONFIGURED, other]
    value = store.get(lock)
    if value is not None and not value.startswith(token):
        return [TAKEN, value, store.pttl(lock)]
    _raise_counter(store, meta, stripe, _number(number))
    store.set(lock, b"\n".join((token, number, holder_info)), px=int(ttl_ms))
    return [GRANTED, 0]


def raise_fence(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Raise the counter to the fence of a grant, but only while the lock is ours."""
    lock, meta = keys
    token, holder_info, stripe, number = args
    value = store.get(lock)
    if value is None or not value.startswith(token):
        return [FREE]
    if _number(store.hget(meta, stripe)) < _number(number):
        store.hset(meta, {stripe: number})
        store.replace(lock, b"\n".join((token, number, holder_info)))
    return [GRANTED, int(_number(number))]


def release(store: Keyspace, keys: Words, args: Words) -> int:
    """Release the lock, if it is ours, and wake a waiter. Twice is harmless."""
    lock, wait_queue = keys
    token, keep_ms = args
    value = store.get(lock)
    if value is None or not value.startswith(token):
        return 0
    store.pexpire(lock, int(keep_ms))  # 0 deletes it
    wake_first(store, wait_queue, keep_ms)
    return 1


def inspect(store: Keyspace, keys: Words, _args: Words = ()) -> Reply:
    """Return the holder of the lock. Changes nothing."""
    (lock,) = keys
    value = store.get(lock)
    return [FREE] if value is None else [TAKEN, value, store.pttl(lock)]


def request_cancel(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Ask the holder of the lock to end, if it is still this one.

    The request is the last line of the lock's value. `extend` returns it to the holder.
    """
    (lock,), (token, who) = keys, args
    value = store.get(lock)
    if value is None or not value.startswith(token):
        return inspect(store, [lock])
    store.replace(lock, _CANCELLED.sub(b"", value) + b"\ncancelled " + who)
    return [GRANTED, 0]


# -- the wait queue ------------------------------------------------------------


def join_wait_queue(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Join the wait queue of the lock, or keep one's place, and return the holder."""
    lock, wait_queue = keys
    waiter, rank, ttl_ms = args
    store.zadd(wait_queue, waiter, float(rank))
    store.pexpire(wait_queue, int(ttl_ms))
    return inspect(store, [lock])


def leave_wait_queue(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Leave the wait queue. A waiter that leaves without the lock wakes the next."""
    lock, wait_queue = keys
    waiter, free_in_ms = args
    store.zrem(wait_queue, waiter)
    if free_in_ms and (free_in_ms != b"0" or store.get(lock) is None):
        wake_first(store, wait_queue, free_in_ms)
    return [GRANTED, 0]


def wake_first(store: Keyspace, wait_queue: bytes, free_in_ms: bytes) -> None:
    """Wake the first waiter whose process still listens; remove those before it.

    This is ``shared/wake_first.lua``. The lock does not depend on the queue, so a key
    of another type does not fail the operation.
    """
    with contextlib.suppress(WrongType):
        while (waiter := store.zpopmin(wait_queue)) is not None:
            channel, slash, name = waiter.rpartition(b"/")
            if slash and store.publish(channel, name + b" " + free_in_ms):
                return


# -- the restart guard ---------------------------------------------------------


def counters(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Read all fence counters of a node that may vote."""
    (meta,), (config,) = keys, args
    known = store.hgetall(meta)
    if known.get(b"config", config) != config:
        return [MISCONFIGURED, known[b"config"]]
    if b"config" not in known or not _same_process(store, known):
        return [UNSYNCED, b""]
    refusal = _may_not_vote(store, known)
    return refusal or [GRANTED, *_flat(_counters_in(known))]


def sync(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Take over the counters of other nodes, and vote again from now on.

    Refused when the node has lost its memory once more since, or is in quarantine.
    Without the restart guard this also gives a node its configuration.
    """
    (meta,) = keys
    config, incarnation, set_floor, tolerance_us, *pairs = args
    known = store.hgetall(meta)
    present = known.get(b"incarnation", b"")
    if known.get(b"config", config) != config:
        return [MISCONFIGURED, known[b"config"]]
    if present != incarnation:
        return [UNSYNCED, present]
    if b"config" not in known:
        if _GUARD_OFF not in config:
            return [UNSYNCED, present]
        _admit(store, meta, config)
    elif not _same_process(store, known):
        return [UNSYNCED, present]
    else:
        left = _quarantine_left(store, known)
        if left:
            return [QUARANTINED, left]
        store.hset(meta, {b"synced": incarnation})
        store.hdel(meta, b"quarantine_until")
    _raise_counters(store, meta, pairs)
    if set_floor == b"1":
        floor = store.now_us() + _number(tolerance_us)
        _raise_counter(store, meta, b"floor", floor)
    return [GRANTED, 0]


def initialize(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Let a node of a new deployment vote at once. Fences start above its TIME.

    A node of the older format 1 is taken over: its fences were below that, too.
    """
    (meta,) = keys
    config, hint_us, tolerance_us = args
    found = store.hget(meta, b"config")
    if found not in (None, config) and not found.startswith(b"protocol 1,"):
        return [MISCONFIGURED, found]
    floor, tolerance = float(store.now_us()), _number(tolerance_us)
    if abs(_number(hint_us) - floor) <= tolerance:
        floor = _number(hint_us) + tolerance
    _raise_counter(store, meta, b"floor", floor + tolerance)
    _admit(store, meta, config)
    return [GRANTED, 0]


def close(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Take the node out of its configuration: it no longer grants or renews."""
    (meta,) = keys
    old, closed, new, quarantine_ms = args
    known = store.hgetall(meta)
    config, left = known.get(b"config"), _quarantine_left(store, known)
    if config == new:
        return [GRANTED, 0]
    if config not in (None, old, closed):
        return [MISCONFIGURED, config]
    if config != closed:
        left = max(left, int(quarantine_ms))
        until = b"%d" % (store.now_us() // 1000 + left)
        store.hset(meta, {b"config": closed, b"quarantine_until": until})
    return [QUARANTINED, left] if left else [FREE]


def open(store: Keyspace, keys: Words, args: Words) -> Reply:  # noqa: A001
    """Let a closed node vote at once under the new configuration, above these fences.

    A node that has the new configuration already is left as it is.
    """
    (meta,) = keys
    closed, new, *pairs = args
    known = store.hgetall(meta)
    config, left = known.get(b"config", b""), _quarantine_left(store, known)
    if config == new:
        return [GRANTED, 0]
    if config != closed:
        return [MISCONFIGURED, config]
    if left:
        return [QUARANTINED, left]
    _raise_counters(store, meta, pairs)
    _admit(store, meta, new)
    return [GRANTED, 0]


# -- records of jobs -----------------------------------------------------------


def enter_successor(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Register this call as the successor, unless a call that comes before it is."""
    *call, holder = args
    return _register(store, keys, call, b"waits", holder)


def start_successor(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Register this call as running, unless one that comes before waits or has run."""
    return _register(store, keys, args, b"runs", None)


def withdraw_successor(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Remove this call from the register. Twice is harmless."""
    (register,), (call_id,) = keys, args
    if not _begins_with_line(store.get(register), call_id):
        return [FREE]
    store.delete(register)
    return [GRANTED, 0]


def claim(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Claim a call for a job, unless another job of the call is known already.

    The same job again is granted again.
    """
    claimed, lock, cooldown = keys
    job, holder_info, ttl_ms, check_lock, check_cooldown = args
    checked = [claimed]
    checked += [lock] if check_lock == b"1" else []
    checked += [cooldown] if check_cooldown == b"1" else []
    for name in checked:
        lines = (store.get(name) or b"").split(b"\n")
        if len(lines) > _JOB and lines[_JOB] not in (b"", job):
            return [TAKEN, b"\n".join((lines[_JOB], *lines[1:])), store.pttl(name)]
    store.set(claimed, b"\n".join((job, b"0", holder_info)), px=int(ttl_ms))
    return [GRANTED, 0]


def keep_claim(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Renew the ttl of the claim of a job. Never creates a claim."""
    (claimed,), (job, ttl_ms) = keys, args
    if not _begins_with_line(store.get(claimed), job):
        return [FREE]
    store.pexpire(claimed, int(ttl_ms))
    return [GRANTED, 0]


def release_claim(store: Keyspace, keys: Words, args: Words) -> Reply:
    """Release the claim of a job. Twice is harmless."""
    (claimed,), (job,) = keys, args
    if not _begins_with_line(store.get(claimed), job):
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
    (config,) = args
    known = store.hgetall(meta)
    if known.get(b"config", config) != config:
        return [MISCONFIGURED, known[b"config"]]
    if b"config" not in known or not _same_process(store, known):
        return [UNSYNCED, b""]
    left = _quarantine_left(store, known)
    return [QUARANTINED, left] if left else [GRANTED, *_flat(store.hgetall(slots))]


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


# -- shared parts --------------------------------------------------------------


def _number(text: bytes | None) -> float:
    """Return Lua's ``tonumber(text) or 0``."""
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0


def _digits(number: float) -> bytes:
    return b"%.0f" % number


def _flat(fields: Mapping[bytes, bytes]) -> list[bytes]:
    return [word for pair in fields.items() for word in pair]


def _begins_with_line(value: bytes | None, line: bytes) -> bool:
    return value is not None and value.partition(b"\n")[0] == line


def _other_config(store: Keyspace, meta: bytes, config: bytes) -> bytes | None:
    """Return the node's configuration, if it is not the client's; b"" for none."""
    found = store.hget(meta, b"config") or b""
    return None if found == config else found


def _same_process(store: Keyspace, known: Mapping[bytes, bytes]) -> bool:
    """Tell whether the server runs in the process in which the node was admitted."""
    return known.get(b"run_id") == store.run_id or _GUARD_OFF in known[b"config"]


def _begin_quarantine(
    store: Keyspace, meta: bytes, config: bytes, incarnation: bytes, ms: bytes
) -> None:
    fields = {b"config": config, b"run_id": store.run_id, b"incarnation": incarnation}
    until = b"%d" % (store.now_us() // 1000 + int(ms))
    store.hset(meta, {**fields, b"quarantine_until": until})


def _quarantine_left(store: Keyspace, known: Mapping[bytes, bytes]) -> int:
    until = known.get(b"quarantine_until")
    return max(0, int(_number(until)) - store.now_us() // 1000) if until else 0


def _admission(
    store: Keyspace, meta: bytes, known: Mapping[bytes, bytes], args: Words
) -> Reply:
    """Refuse an acquire on a node that may not vote. Notice a loss of memory."""
    config, token, quarantine_ms = args
    if b"config" not in known and _GUARD_OFF in config:
        return [UNSYNCED, b""]
    if b"config" not in known or not _same_process(store, known):
        _begin_quarantine(store, meta, config, token, quarantine_ms)
        return [QUARANTINED, int(quarantine_ms)]
    return _may_not_vote(store, known)


def _may_not_vote(store: Keyspace, known: Mapping[bytes, bytes]) -> Reply:
    left = _quarantine_left(store, known)
    if left:
        return [QUARANTINED, left]
    incarnation = known.get(b"incarnation", b"")
    is_synced = incarnation and known.get(b"synced") == incarnation
    return [] if is_synced else [UNSYNCED, incarnation]


def _counters_in(known: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {f: n for f, n in known.items() if f == b"floor" or f.isdigit()}


def _raise_counter(store: Keyspace, meta: bytes, field: bytes, number: float) -> None:
    if _number(store.hget(meta, field)) < number:
        store.hset(meta, {field: _digits(number)})


def _raise_counters(store: Keyspace, meta: bytes, pairs: Words) -> None:
    for field, number in zip(pairs[::2], pairs[1::2], strict=True):
        _raise_counter(store, meta, field, _number(number))


def _admit(store: Keyspace, meta: bytes, config: bytes) -> None:
    names = dict.fromkeys((b"run_id", b"incarnation", b"synced"), store.run_id)
    store.hset(meta, {b"config": config, **names})
    store.hdel(meta, b"quarantine_until")


def _register(
    store: Keyspace, keys: Words, call: Words, state: bytes, holder: bytes | None
) -> Reply:
    """Enter a call in the register, unless the registered call comes before it.

    A call that runs comes only before those that had been entered when it started.
    """
    (register,) = keys
    call_id, published_us, keep, expires, ttl_ms, entered = call
    value = store.get(register)
    found = _REGISTERED.match(value or b"")
    if found:
        registered, theirs, their_state = found.groups()
        runs = their_state == b"runs" or registered == holder
        is_later = (float(theirs), registered) > (float(published_us), call_id)
        is_rival = registered != call_id and (not runs or entered == b"1")
        if is_rival and is_later == (keep == b"latest"):
            return [TAKEN, value, store.pttl(register)]
    entry = b"\n".join((call_id, published_us, expires, state))
    store.set(register, entry, px=int(ttl_ms))
    return [GRANTED, 0]
