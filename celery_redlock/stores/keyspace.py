"""The keys of one transaction of a store: a ``scripts.keyspace.Keyspace``.

::

    load ──► entries ──► a script reads and changes them ──► changes ──► the store

An *entry* is one key: a string, a hash or a sorted set, and when it expires. In the
store it is several *cells*: its head (kind, string, end) and one for each member, so
that the fence counters of one hash can be changed by many transactions at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from celery_redlock.scripts.keyspace import WrongType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_redlock.stores.server_clock import ServerTime

__all__ = [
    "HASH",
    "HEAD",
    "STRING",
    "ZSET",
    "Cell",
    "Changes",
    "Counter",
    "Loader",
    "StoreKeyspace",
]

STRING, HASH, ZSET = "string", "hash", "zset"
HEAD = b""  # the field of the cell that is the head of an entry
_MEMBER = b"."  # the start of the field of every other cell
_NO_KEY, _NO_TTL = -2, -1


class Cell(NamedTuple):
    """A row of a store.

    Attributes:
        name: The name of the key.
        field: `HEAD`, or a member with a dot before it.
        kind: Of the key: `STRING`, `HASH` or `ZSET`.
        value: The string, or the value of a field of a hash.
        score: The score of a member of a sorted set.
        expires_at_ms: When the key ends, in ms since 1970, of a head; None: never.
    """

    name: bytes
    field: bytes
    kind: str
    value: bytes | None
    score: float | None
    expires_at_ms: int | None


@dataclass(slots=True)
class Changes:
    """The changes of a transaction.

    Attributes:
        wiped: Keys of which all cells are deleted, before anything is written.
        removed: Cells that are deleted: name and field.
        written: Cells that are written, over older ones.
        messages: Channel and message of each release that wakes a waiter.
    """

    wiped: set[bytes] = field(default_factory=set)
    removed: dict[tuple[bytes, bytes], None] = field(default_factory=dict)
    written: dict[tuple[bytes, bytes], Cell] = field(default_factory=dict)
    messages: list[tuple[bytes, bytes]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.wiped or self.removed or self.written or self.messages)


class Loader(Protocol):
    """The part of a store that a keyspace asks while a script runs."""

    def load(self, names: Sequence[bytes]) -> Iterable[Cell]:
        """Return all cells of these keys."""

    def listens(self, channel: bytes) -> bool:
        """Tell whether a process listens on this channel."""


class Counter(Loader, Protocol):
    """A store that counts sorted sets itself: see ``Needs.large``."""

    def flush(self, changes: Changes) -> None:
        """Write these changes, which the transaction may still take back."""

    def zcard(self, name: bytes) -> int:
        """Return how many members the cells of a sorted set say that it has."""

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many of them come before this one."""

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this."""


@dataclass(slots=True)
class _Entry:
    kind: str = ""  # "": there is no such key
    value: bytes | None = None
    members: dict[bytes, Any] = field(default_factory=dict)
    expires_at_ms: int | None = None
    is_stale: bool = False  # the store has cells of a key that has ended
    is_part: bool = False  # the store has members that were not loaded


class StoreKeyspace:
    """Keys that are loaded from a store, and the changes of scripts to them.

    Args:
        loader: Loads keys that were not loaded before.
        run_id: The name of the server, which another one has after it may have lost
            keys.
        time: What the clock of the store says.
        sees_ended: Whether a string that has ended is still there, for a millisecond.

    Attributes:
        replid: Nothing: the run id tells where replication may have replaced keys.
        evicted, evicts: Nothing: a store evicts no keys.
        changes: What the scripts have changed, and the store has not written.
        is_changed: Whether the store has written other changes before.
    """

    replid = evicted = evicts = b""

    def __init__(
        self,
        loader: Loader,
        *,
        run_id: bytes,
        time: ServerTime,
        sees_ended: bool = False,
    ) -> None:
        self.changes = Changes()
        self.is_changed = False
        self.run_id = run_id
        self._loader = loader
        self._now_us = time.earliest_us
        self._now_ms = time.earliest_us // 1000
        self._latest_ms = -(-time.latest_us // 1000)  # rounded up
        self._sees_ended = sees_ended
        self._entries: dict[bytes, _Entry] = {}
        self._shrunk: set[bytes] = set()

    # -- loading -------------------------------------------------------------------

    def enter(
        self,
        names: Iterable[bytes],
        cells: Iterable[Cell],
        parts: Iterable[bytes] = (),
    ) -> None:
        """Enter the cells of keys; one without a cell does not exist.

        Args:
            names: The keys that were loaded.
            cells: Their cells.
            parts: More keys, of which some members were loaded.
        """
        for name in names:
            self._entries[name] = _Entry()
        for name in parts:
            self._entries[name] = _Entry(is_part=True)
        for cell in cells:
            entry = self._entries[cell.name]
            if cell.field == HEAD:
                entry.kind, entry.value = cell.kind, cell.value
                entry.expires_at_ms = cell.expires_at_ms
            else:
                value = cell.value if cell.kind == HASH else cell.score
                entry.members[cell.field[1:]] = value
        for name in (*names, *parts):
            self._end(self._entries[name])

    def _end(self, entry: _Entry) -> None:
        """Forget a key whose time is over. Its cells are still in the store."""
        ends = entry.expires_at_ms
        if not entry.kind:  # members without a head are what a crash of a sweep left
            entry.is_stale = bool(entry.members)
            entry.members, entry.is_part = {}, False
        elif ends is not None and self._now_ms > ends:
            if self._sees_ended and entry.kind == STRING:
                entry.expires_at_ms = self._now_ms + 1
                return
            entry.kind, entry.value, entry.members = "", None, {}
            entry.expires_at_ms, entry.is_stale, entry.is_part = None, True, False

    def _at(self, name: bytes, kind: str = "") -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            self.enter([name], self._loader.load([name]))
            entry = self._entries[name]
        if kind and entry.kind not in ("", kind):
            raise WrongType
        return entry

    # -- what scripts do -------------------------------------------------------------

    def proven_start_ms(self) -> None:
        """Prove nothing: a store has no process that forgets when it ends."""

    def may_be_copy(self) -> bool:
        """Return True: a promoted standby has the keys of its primary."""
        return True

    def note_vote(self) -> None:
        """Note nothing, for the same reason."""

    def now_us(self) -> int:
        """Return microseconds since 1970 by the clock of the store (TIME).

        The earliest that it may say, so that nothing ends too early.
        """
        return self._now_us

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message at the end of the transaction, if a process listens."""
        if not self._loader.listens(channel):
            return 0
        self.changes.messages.append((channel, message))
        return 1

    def get(self, name: bytes) -> bytes | None:
        """Return a string (GET)."""
        return self._at(name, STRING).value

    def mget(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return strings; None for other types, too (MGET)."""
        unknown = [name for name in dict.fromkeys(names) if name not in self._entries]
        if unknown:
            self.enter(unknown, self._loader.load(unknown))
        return [self._entries[name].value for name in names]

    def set(self, name: bytes, value: bytes, *, px: int | None = None) -> None:
        """Store a string, over any type (SET PX)."""
        self.delete(name)
        entry = self._entries[name]
        entry.kind, entry.value = STRING, value
        entry.expires_at_ms = None if px is None else self._latest_ms + px
        self._write_head(name, entry)

    def replace(self, name: bytes, value: bytes) -> None:
        """Store a string and keep the ttl of the key (SET KEEPTTL)."""
        entry = self._at(name)
        if entry.kind != STRING:
            ends = entry.expires_at_ms
            self.set(name, value)
            self._entries[name].expires_at_ms = ends
        self._entries[name].value = value
        self._write_head(name, self._entries[name])

    def delete(self, name: bytes) -> bool:
        """Delete a key of any type; tell whether it was there (DEL)."""
        entry = self._at(name)
        written = self.changes.written
        for field_ in (HEAD, *(_MEMBER + member for member in entry.members)):
            written.pop((name, field_), None)
        if entry.kind or entry.is_stale:
            self.changes.wiped.add(name)
        self._entries[name] = _Entry()
        return bool(entry.kind)

    def pttl(self, name: bytes) -> int:
        """Return the milliseconds left; -1 without a ttl, -2 for no key (PTTL)."""
        entry = self._at(name)
        if not entry.kind:
            return _NO_KEY
        ends = entry.expires_at_ms
        if ends is None:
            return _NO_TTL
        return max(1, ends - self._latest_ms)  # it may have ended, and is still there

    def pexpire(self, name: bytes, milliseconds: int) -> bool:
        """Set the ttl of a key; 0 deletes it. Tell whether it was there (PEXPIRE)."""
        entry = self._at(name)
        if not entry.kind:
            return False
        if milliseconds <= 0:
            return self.delete(name)
        entry.expires_at_ms = self._latest_ms + milliseconds
        self._write_head(name, entry)
        return True

    def hget(self, name: bytes, field: bytes) -> bytes | None:
        """Return one field of a hash (HGET)."""
        return self.hgetall(name).get(field)

    def hgetall(self, name: bytes) -> Mapping[bytes, bytes]:
        """Return a hash (HGETALL): of what a script needs a part of, that part."""
        return self._at(name, HASH).members

    def hset(self, name: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Set fields of a hash (HSET)."""
        for member, value in fields.items():
            self._put(name, HASH, member, value)

    def hdel(self, name: bytes, field: bytes) -> None:
        """Delete one field of a hash, and the hash with its last field (HDEL)."""
        self._remove(name, HASH, field)

    def zadd(self, name: bytes, member: bytes, score: float) -> None:
        """Set the score of a member of a sorted set (ZADD)."""
        self._put(name, ZSET, member, float(score))

    def zrem(self, name: bytes, member: bytes) -> None:
        """Remove a member of a sorted set, and the set with its last one (ZREM)."""
        self._remove(name, ZSET, member)

    def zscore(self, name: bytes, member: bytes) -> float | None:
        """Return the score of a member of a sorted set (ZSCORE)."""
        found: float | None = self._at(name, ZSET).members.get(member)
        return found

    def zset(self, name: bytes) -> Mapping[bytes, float]:
        """Return a sorted set, least score first (ZRANGE WITHSCORES)."""
        members = self._at(name, ZSET).members
        return dict(sorted(members.items(), key=lambda item: item[::-1]))

    def zpopmin(self, name: bytes) -> bytes | None:
        """Remove and return the member of the least score, then name (ZPOPMIN)."""
        first = next(iter(self.zset(name)), None)
        if first is not None:
            self.zrem(name, first)
        return first

    def zcard(self, name: bytes) -> int:
        """Return how many members a sorted set has (ZCARD)."""
        entry = self._at(name, ZSET)
        if not entry.is_part:
            return len(entry.members)
        return self._counter().zcard(name)

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many members come before this one (ZRANK)."""
        entry = self._at(name, ZSET)
        if not entry.is_part:
            members = list(self.zset(name))
            return members.index(member) if member in members else None
        return self._counter().zrank(name, member)

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this (ZRANGEBYSCORE)."""
        entry = self._at(name, ZSET)
        if not entry.is_part:
            found = [one for one, score in self.zset(name).items() if score <= most]
            return found[:count]
        return self._counter().zrangebyscore(name, most, count)

    # -- changes ---------------------------------------------------------------------

    def _counter(self) -> Counter:
        """Return the store, when it has written the changes so far.

        Messages stay until the end.
        """
        taken, self.changes = self.changes, Changes(messages=self.changes.messages)
        taken.messages = []
        self.is_changed = self.is_changed or bool(taken)
        counter = cast("Counter", self._loader)  # or nothing was loaded in part
        counter.flush(taken)
        return counter

    def _put(self, name: bytes, kind: str, member: bytes, value: Any) -> None:
        entry = self._at(name, kind)
        if not entry.kind:
            if entry.is_stale:
                self.changes.wiped.add(name)
            entry.kind, entry.is_stale = kind, False
            self._write_head(name, entry)
        entry.members[member] = value
        is_hash = kind == HASH
        cell = Cell(
            name,
            _MEMBER + member,
            kind,
            value if is_hash else None,
            None if is_hash else _finite(value),
            None,
        )
        self.changes.removed.pop((name, cell.field), None)
        self.changes.written[name, cell.field] = cell

    def _remove(self, name: bytes, kind: str, member: bytes) -> None:
        entry = self._at(name, kind)
        if entry.members.pop(member, None) is None and not entry.is_part:
            return
        field_ = _MEMBER + member
        self.changes.written.pop((name, field_), None)
        self.changes.removed[name, field_] = None
        if entry.is_part:
            self._shrunk.add(name)
        elif not entry.members:
            self.delete(name)

    def finish(self) -> None:
        """Delete the sets that lost their last member, where the store counts them."""
        for name in self._shrunk:
            if self._entries[name].is_part and not self.zcard(name):
                self.delete(name)
        self._shrunk.clear()

    def _write_head(self, name: bytes, entry: _Entry) -> None:
        cell = Cell(name, HEAD, entry.kind, entry.value, None, entry.expires_at_ms)
        self.changes.written[name, HEAD] = cell


def _finite(score: float) -> float:
    return math.copysign(1e308, score) if math.isinf(score) else score
