"""The few Redis commands that the scripts use, on a dict.

As on a server, a key lives to the end of the millisecond in which its ttl ends,
a command on a key of another type is an error, and all commands of one script
see the same instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Keyspace", "NodeClock", "WrongType"]


class NodeClock(Protocol):
    """What a node knows of time.

    A real server counts ttls by its wall clock. Give a clock whose two readings
    step together to see what that does.
    """

    def monotonic(self) -> float:
        """Seconds by which ttls are counted."""

    def wall_us(self) -> int:
        """Microseconds since 1970: what the command TIME says."""


class WrongType(Exception):  # noqa: N818  (Redis calls it WRONGTYPE)
    """A command came for a key that holds another kind of value."""

    def __init__(self) -> None:
        super().__init__(
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        )


class _SortedSet(dict[bytes, float]):
    """Members and their scores."""


@dataclass(slots=True)
class _Entry:
    value: bytes | dict[bytes, bytes] | _SortedSet
    expires_at_ms: int | None = None


class Keyspace:
    """Keys that hold strings, hashes or sorted sets, with ttls in milliseconds.

    Attributes:
        now_ms: The instant that commands see, until ``look_at_clock``.
    """

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._entries: dict[bytes, _Entry] = {}
        self.look_at_clock()

    def look_at_clock(self) -> None:
        """Move on to the present. A script does so once, when it begins."""
        self.now_ms = round(self._clock.monotonic() * 1_000_000) // 1000

    def keys(self) -> list[bytes]:
        """Return the names of all keys that are alive."""
        return [name for name in list(self._entries) if self._find(name)]

    def clear(self) -> None:
        """Forget everything (FLUSHALL)."""
        self._entries.clear()

    def get(self, name: bytes) -> bytes | None:
        """Return a string (GET)."""
        entry = self._find(name)
        if entry is None:
            return None
        if not isinstance(entry.value, bytes):
            raise WrongType
        return entry.value

    def set(self, name: bytes, value: bytes, *, px: int | None = None) -> None:
        """Store a string, for ``px`` milliseconds or for ever (SET)."""
        ends = None if px is None else self.now_ms + px
        self._entries[name] = _Entry(value, ends)

    def replace(self, name: bytes, value: bytes) -> None:
        """Store a string and leave the key its ttl (SET KEEPTTL)."""
        entry = self._find(name)
        self._entries[name] = _Entry(value, entry.expires_at_ms if entry else None)

    def delete(self, name: bytes) -> None:
        """Forget a key (DEL)."""
        self._entries.pop(name, None)

    def pttl(self, name: bytes) -> int:
        """Return the milliseconds left; -1 for ever, -2 for no key (PTTL)."""
        entry = self._find(name)
        if entry is None:
            return -2
        if entry.expires_at_ms is None:
            return -1
        return entry.expires_at_ms - self.now_ms

    def pexpire(self, name: bytes, milliseconds: int) -> None:
        """Let a key live for so long from now (PEXPIRE)."""
        entry = self._find(name)
        if entry and milliseconds > 0:
            entry.expires_at_ms = self.now_ms + milliseconds
        elif entry:
            self.delete(name)

    def hget(self, name: bytes, field: bytes) -> bytes | None:
        """Return one field of a hash (HGET)."""
        return self.hgetall(name).get(field)

    def hgetall(self, name: bytes) -> Mapping[bytes, bytes]:
        """Return a hash; empty where there is none (HGETALL)."""
        entry = self._find(name)
        if entry is None:
            return {}
        if isinstance(entry.value, (bytes, _SortedSet)):
            raise WrongType
        return entry.value

    def hset(self, name: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Set fields of a hash (HSET)."""
        entry = self._find(name) or self._entries.setdefault(name, _Entry({}))
        if isinstance(entry.value, (bytes, _SortedSet)):
            raise WrongType
        entry.value.update(fields)

    def hdel(self, name: bytes, field: bytes) -> None:
        """Forget one field of a hash, and the hash with the last (HDEL)."""
        if self.hgetall(name):
            fields: Any = self._entries[name].value
            fields.pop(field, None)
            if not fields:
                self.delete(name)

    def zset(self, name: bytes) -> Mapping[bytes, float]:
        """Return a sorted set, least score first (ZRANGE WITHSCORES)."""
        entry = self._find(name)
        if entry is None:
            return {}
        if not isinstance(entry.value, _SortedSet):
            raise WrongType
        return dict(sorted(entry.value.items(), key=lambda item: item[::-1]))

    def zadd(self, name: bytes, member: bytes, score: float) -> None:
        """Give a member of a sorted set this score (ZADD)."""
        self.zset(name)
        members: Any = self._entries.setdefault(name, _Entry(_SortedSet())).value
        members[member] = score

    def zrem(self, name: bytes, member: bytes) -> None:
        """Forget one member of a sorted set, and the set with the last (ZREM)."""
        if self.zset(name):
            members: Any = self._entries[name].value
            members.pop(member, None)
            if not members:
                self.delete(name)

    def _find(self, name: bytes) -> _Entry | None:
        entry = self._entries.get(name)
        ends = entry.expires_at_ms if entry else None
        if ends is not None and self.now_ms > ends:
            del self._entries[name]
            return None
        return entry
