"""The keys on which the scripts run in this process.

`Keyspace` has them in a dict. ``testing.memory_node`` adds a clock to it. A store such
as PostgreSQL adds the keys of one transaction: ``stores.keyspace``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STRING, HASH, ZSET = "string", "hash", "zset"
NO_KEY, NO_TTL = -2, -1  # replies of PTTL


class CommandError(Exception):
    """A command is refused: the script ends with this error, unless by ``pcall``."""


class WrongType(CommandError):  # noqa: N818  (Redis calls it WRONGTYPE)
    """The key holds a value of another type."""

    def __init__(self) -> None:
        super().__init__(
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        )


@dataclass(slots=True)
class Entry:
    """One key.

    Attributes:
        kind: `STRING`, `HASH` or `ZSET`.
        value: The string.
        members: Field -> value, or member -> score.
        expires_at_ms: When it ends, in milliseconds; None: never.
    """

    kind: str
    value: bytes | None = None
    members: dict[bytes, Any] = field(default_factory=dict)
    expires_at_ms: int | None = None


class Keyspace:
    """The keys of one node: strings, hashes and sorted sets that can expire.

    Names and values are bytes, durations are milliseconds. The methods have the names
    of the Redis commands. While one script runs, no other script sees or changes
    the keys, and a key that has not expired at its start does not expire.

    Attributes:
        replid: The name of its memory: another one after each start that may have lost
            keys, and after replication may have replaced them (INFO).
        evicted: Number of keys that the process has evicted (INFO); b"": it never does.
        evicts: Policy by which the process may evict keys now; b"" if it may not.

    Raises:
        WrongType: From every method that reads or changes a key of another type.
    """

    replid = evicted = evicts = b""
    _latest_ms = 0  # the latest that the clock may show: from there a ttl counts
    _least_left_ms = 0  # of a key that is there

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry | None] = {}

    def proven_start_ms(self) -> int | None:
        """Return the start of a process that provably has not voted; else None.

        In milliseconds since 1970. None of a store: no process of it forgets its keys.
        """

    def note_vote(self) -> None:
        """Note that the process votes, where a process forgets its keys at its end."""

    def may_be_copy(self) -> bool:
        """Tell whether the keys may be those of another server, which lives on.

        So may those of a store: a promoted standby has the keys of its primary.
        """
        return True

    def now_us(self) -> int:
        """Return microseconds since 1970 by the clock of the node (TIME)."""
        raise NotImplementedError

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message and return how many subscribers get it (PUBLISH)."""
        raise NotImplementedError

    def _at(self, name: bytes, kind: str = "") -> Entry | None:
        """Return a key, which must be of this kind; None if there is none."""
        entry = self._entries.get(name)
        if entry and kind and entry.kind != kind:
            raise WrongType
        return entry

    # -- strings, and all kinds ------------------------------------------------------

    def get(self, name: bytes) -> bytes | None:
        """Return a string (GET)."""
        entry = self._at(name, STRING)
        return entry.value if entry else None

    def mget(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return strings; None for other types, too (MGET)."""
        found = [self._at(name) for name in names]
        return [entry.value if entry else None for entry in found]

    def set(self, name: bytes, value: bytes, *, px: int | None = None) -> None:
        """Store a string, over any type, with a ttl of ``px`` ms or none (SET PX)."""
        self._store(name, value, None if px is None else self._latest_ms + px)

    def replace(self, name: bytes, value: bytes) -> None:
        """Store a string and keep the ttl of the key (SET KEEPTTL)."""
        entry = self._at(name)
        if entry is None or entry.kind != STRING:
            self._store(name, value, entry.expires_at_ms if entry else None)
        else:
            entry.value = value
            self._note_head(name, entry)

    def delete(self, name: bytes) -> bool:
        """Delete a key of any type; tell whether it was there (DEL)."""
        return self._at(name) is not None and bool(self._entries.pop(name))

    def pttl(self, name: bytes) -> int:
        """Return the milliseconds left; -1 without a ttl, -2 for no key (PTTL)."""
        entry = self._at(name)
        if entry is None:
            return NO_KEY
        if entry.expires_at_ms is None:
            return NO_TTL
        return max(self._least_left_ms, entry.expires_at_ms - self._latest_ms)

    def pexpire(self, name: bytes, milliseconds: int) -> bool:
        """Set the ttl of a key; 0 deletes it. Tell whether it was there (PEXPIRE)."""
        entry = self._at(name)
        if entry is None:
            return False
        if milliseconds <= 0:
            return self.delete(name)
        entry.expires_at_ms = self._latest_ms + milliseconds
        self._note_head(name, entry)
        return True

    # -- hashes ----------------------------------------------------------------------

    def hgetall(self, name: bytes) -> Mapping[bytes, bytes]:
        """Return a hash, empty if there is none (HGETALL)."""
        entry = self._at(name, HASH)
        return entry.members if entry else {}

    def hset(self, name: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Set fields of a hash (HSET)."""
        self._put(name, HASH, fields)

    def hdel(self, name: bytes, field: bytes) -> None:
        """Delete one field of a hash, and the hash with its last field (HDEL)."""
        self._remove(name, HASH, field)

    # -- sorted sets -----------------------------------------------------------------

    def zadd(self, name: bytes, member: bytes, score: float) -> None:
        """Set the score of a member of a sorted set (ZADD)."""
        self._put(name, ZSET, {member: float(score)})

    def zrem(self, name: bytes, member: bytes) -> None:
        """Remove a member of a sorted set, and the set with its last one (ZREM)."""
        self._remove(name, ZSET, member)

    def zscore(self, name: bytes, member: bytes) -> float | None:
        """Return the score of a member of a sorted set (ZSCORE)."""
        entry = self._at(name, ZSET)
        return entry.members.get(member) if entry else None

    def zset(self, name: bytes) -> Mapping[bytes, float]:
        """Return a sorted set, least score first (ZRANGE WITHSCORES)."""
        entry = self._at(name, ZSET)
        if entry is None:
            return {}
        return dict(sorted(entry.members.items(), key=lambda item: item[::-1]))

    def zpopmin(self, name: bytes) -> bytes | None:
        """Remove and return the member of the least score, then name (ZPOPMIN)."""
        first = next(iter(self.zset(name)), None)
        if first is not None:
            self.zrem(name, first)
        return first

    def zcard(self, name: bytes) -> int:
        """Return how many members a sorted set has (ZCARD)."""
        entry = self._at(name, ZSET)
        return len(entry.members) if entry else 0

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many members come before this one (ZRANK)."""
        members = list(self.zset(name))
        return members.index(member) if member in members else None

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this (ZRANGEBYSCORE)."""
        members = self.zset(name).items()
        return [member for member, score in members if score <= most][:count]

    # -- changes ---------------------------------------------------------------------

    def _note_head(self, name: bytes, entry: Entry) -> None:
        """Note that the string, the kind or the end of a key has changed."""

    def _store(self, name: bytes, value: bytes, ends_ms: int | None) -> None:
        entry = self._entries[name] = Entry(STRING, value, expires_at_ms=ends_ms)
        self._note_head(name, entry)

    def _put(self, name: bytes, kind: str, members: Mapping[bytes, Any]) -> None:
        entry = self._at(name, kind)
        if entry is None:
            entry = self._entries[name] = Entry(kind)
            self._note_head(name, entry)
        entry.members.update(members)

    def _remove(self, name: bytes, kind: str, member: bytes) -> None:
        entry = self._at(name, kind)
        if entry is not None:
            entry.members.pop(member, None)
            if not entry.members:
                self.delete(name)
