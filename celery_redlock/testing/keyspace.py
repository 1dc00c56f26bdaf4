"""The keys of a node in memory: the Redis commands that the scripts use, on a dict.

As on a server, a key lives to the end of the millisecond in which its ttl ends,
a command on a key of another type is an error, and all commands of one script
see the same instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock.core.scripts.operations import WrongType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["MemoryKeyspace", "NodeClock", "no_subscribers"]


class NodeClock(Protocol):
    """The two clocks of a node.

    A real server counts ttls by its wall clock. A clock whose two readings step
    together shows what follows from that.
    """

    def monotonic(self) -> float:
        """Seconds by which ttls are counted."""

    def wall(self) -> float:
        """Seconds since 1970 (TIME)."""


def no_subscribers(_channel: bytes, _message: bytes) -> int:
    """Send a message to the subscribers of a channel. There are none."""
    return 0


class _SortedSet(dict[bytes, float]):
    """Members and their scores."""


@dataclass(slots=True)
class _Entry:
    value: bytes | dict[bytes, bytes] | _SortedSet
    expires_at_ms: int | None = None


class MemoryKeyspace:
    """Keys that hold strings, hashes or sorted sets: a ``core.scripts`` keyspace.

    Args:
        clock: The time of the node.
        run_id: The first value of ``run_id``.
        publish: Sends a message to the subscribers of a channel; returns their number.

    Attributes:
        run_id: The name of the present server process.
        now_ms: The instant by which keys expire, until ``look_at_clock``.
    """

    def __init__(
        self,
        clock: NodeClock,
        *,
        run_id: str = "",
        publish: Callable[[bytes, bytes], int] = no_subscribers,
    ) -> None:
        self._clock = clock
        self._publish = publish
        self._entries: dict[bytes, _Entry] = {}
        self.run_id = run_id.encode()
        self.look_at_clock()

    def look_at_clock(self) -> None:
        """Move on to the present. A script does so once, at its start."""
        self.now_ms = round(self._clock.monotonic() * 1_000_000) // 1000

    def now_us(self) -> int:
        """Return microseconds since 1970 (TIME)."""
        return round(self._clock.wall() * 1e6)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message and return how many subscribers get it (PUBLISH)."""
        return self._publish(channel, message)

    def keys(self) -> list[bytes]:
        """Return the names of all keys that are alive."""
        return [name for name in list(self._entries) if self._find(name)]

    def clear(self) -> None:
        """Delete all keys (FLUSHALL)."""
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
        """Store a string, with a ttl of ``px`` milliseconds or without one (SET)."""
        ends = None if px is None else self.now_ms + px
        self._entries[name] = _Entry(value, ends)

    def replace(self, name: bytes, value: bytes) -> None:
        """Store a string and keep the ttl of the key (SET KEEPTTL)."""
        entry = self._find(name)
        self._entries[name] = _Entry(value, entry.expires_at_ms if entry else None)

    def delete(self, name: bytes) -> None:
        """Delete a key (DEL)."""
        self._entries.pop(name, None)

    def pttl(self, name: bytes) -> int:
        """Return the milliseconds left; -1 without a ttl, -2 for no key (PTTL)."""
        entry = self._find(name)
        if entry is None:
            return -2
        if entry.expires_at_ms is None:
            return -1
        return entry.expires_at_ms - self.now_ms

    def pexpire(self, name: bytes, milliseconds: int) -> None:
        """Set the ttl of a key, if it exists; 0 deletes the key (PEXPIRE)."""
        entry = self._find(name)
        if entry and milliseconds > 0:
            entry.expires_at_ms = self.now_ms + milliseconds
        elif entry:
            self.delete(name)

    def hget(self, name: bytes, field: bytes) -> bytes | None:
        """Return one field of a hash (HGET)."""
        return self.hgetall(name).get(field)

    def hgetall(self, name: bytes) -> Mapping[bytes, bytes]:
        """Return a hash, empty if there is none (HGETALL)."""
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
        """Delete one field of a hash, and the hash with the last one (HDEL)."""
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
        """Set the score of a member of a sorted set (ZADD)."""
        self.zset(name)
        members: Any = self._entries.setdefault(name, _Entry(_SortedSet())).value
        members[member] = score

    def zpopmin(self, name: bytes) -> bytes | None:
        """Remove and return the member with the least score, then name (ZPOPMIN)."""
        first = next(iter(self.zset(name)), None)
        if first is not None:
            self.zrem(name, first)
        return first

    def zrem(self, name: bytes, member: bytes) -> None:
        """Remove a member of a sorted set, and the set with the last one (ZREM)."""
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
