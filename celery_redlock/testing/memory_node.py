"""One node in memory: its keys, a run id, and the scripts over them.

The keys have the Redis commands that the scripts use, on a dict. As on a server, a key
lives to the end of the millisecond in which its ttl ends, a command on a key of another
type is an error, and all commands of one script see the same instant.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import ConfigurationError
from celery_redlock.scripts.keyspace import WrongType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from celery_redlock.scripts import Script


class NodeClock(Protocol):
    """The two clocks of a node. A real server counts ttls by its wall clock."""

    def monotonic(self) -> float:
        """Seconds by which ttls are counted."""

    def wall(self) -> float:
        """Seconds since 1970 (TIME)."""


class _Hash(dict[bytes, bytes]):
    """Fields and their values."""


class _SortedSet(dict[bytes, float]):
    """Members and their scores."""


_Members = TypeVar("_Members", _Hash, _SortedSet)


@dataclass(slots=True)
class _Entry:
    value: bytes | _Hash | _SortedSet
    expires_at_ms: int | None = None


class MemoryKeyspace:
    """Keys that hold strings, hashes or sorted sets: a ``scripts`` keyspace.

    Args:
        clock: The time of the node.
        run_id: The first value of ``run_id``.
        publish: As for `MemoryNode`.

    Attributes:
        run_id: The name of the present server process.
        replid: The name of the history of its data, as replication knows it.
        evicted: How many keys the process has evicted.
        evicts: The policy by which it may evict keys now, or b"".
        started_ms: When the process began, in ms since 1970; None once it has voted.
        publish: Sends a message; returns how many subscribers get it (PUBLISH).
        now_ms: The instant by which keys expire, until ``look_at_clock``.
    """

    def __init__(
        self, clock: NodeClock, run_id: str, publish: Callable[[bytes, bytes], int]
    ) -> None:
        self._clock = clock
        self.publish = publish
        self._entries: dict[bytes, _Entry] = {}
        self.begin(run_id.encode())
        self.look_at_clock()

    def begin(self, run_id: bytes) -> None:
        """Begin as a new process: it has never voted."""
        self.run_id = self.replid = run_id
        self.evicted, self.evicts = b"0", b""
        self.started_ms: int | None = self.now_us() // 1000
        self._was_replica = False

    def evict(self, name: bytes) -> None:
        """Delete a key, as a server does that has no memory left for others."""
        self.delete(name)
        self.evicted = b"%d" % (int(self.evicted) + 1)

    def note_vote(self) -> None:
        """Note a vote: from now on the uptime of this process is no proof."""
        self.started_ms = None

    def proven_start_ms(self) -> int | None:
        """Return when the process began, in ms since 1970, if it has never voted."""
        return self.started_ms

    def promote(self) -> None:
        """Become a master again that was a replica. It may have other keys then."""
        self.replid += b"2"
        self.started_ms = None
        self._was_replica = True

    def may_be_copy(self) -> bool:
        """Tell whether the keys may be those of another server, which lives on."""
        return self._was_replica

    def look_at_clock(self) -> None:
        """Move on to the present. A script does so once, at its start."""
        self.now_ms = round(self._clock.monotonic() * 1_000_000) // 1000

    def now_us(self) -> int:
        """Return microseconds since 1970 (TIME)."""
        return round(self._clock.wall() * 1e6)

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

    def mget(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return strings; None for other types, too (MGET)."""
        found = [self._find(name) for name in names]
        return [
            entry.value if entry and isinstance(entry.value, bytes) else None
            for entry in found
        ]

    def set(self, name: bytes, value: bytes, *, px: int | None = None) -> None:
        """Store a string, with a ttl of ``px`` milliseconds or without one (SET)."""
        ends = None if px is None else self.now_ms + px
        self._entries[name] = _Entry(value, ends)

    def replace(self, name: bytes, value: bytes) -> None:
        """Store a string and keep the ttl of the key (SET KEEPTTL)."""
        entry = self._find(name)
        self._entries[name] = _Entry(value, entry.expires_at_ms if entry else None)

    def delete(self, name: bytes) -> bool:
        """Delete a key; tell whether it was there (DEL)."""
        return bool(self._find(name) and self._entries.pop(name))

    def pttl(self, name: bytes) -> int:
        """Return the milliseconds left; -1 without a ttl, -2 for no key (PTTL)."""
        entry = self._find(name)
        if entry is None:
            return -2
        if entry.expires_at_ms is None:
            return -1
        return entry.expires_at_ms - self.now_ms

    def pexpire(self, name: bytes, milliseconds: int) -> bool:
        """Set the ttl of a key; 0 deletes it. Tell whether it was there (PEXPIRE)."""
        entry = self._find(name)
        if entry and milliseconds > 0:
            entry.expires_at_ms = self.now_ms + milliseconds
        elif entry:
            self.delete(name)
        return entry is not None

    def hget(self, name: bytes, field: bytes) -> bytes | None:
        """Return one field of a hash (HGET)."""
        return self.hgetall(name).get(field)

    def hgetall(self, name: bytes) -> Mapping[bytes, bytes]:
        """Return a hash, empty if there is none (HGETALL)."""
        return self._members(name, _Hash)

    def hset(self, name: bytes, fields: Mapping[bytes, bytes]) -> None:
        """Set fields of a hash (HSET)."""
        members = self._members(name, _Hash)
        members.update(fields)
        self._entries.setdefault(name, _Entry(members))

    def hdel(self, name: bytes, field: bytes) -> None:
        """Delete one field of a hash, and the hash with the last one (HDEL)."""
        self._remove(name, field, _Hash)

    def zscore(self, name: bytes, member: bytes) -> float | None:
        """Return the score of a member of a sorted set (ZSCORE)."""
        return self._members(name, _SortedSet).get(member)

    def zset(self, name: bytes) -> Mapping[bytes, float]:
        """Return a sorted set, least score first (ZRANGE WITHSCORES)."""
        members = self._members(name, _SortedSet)
        return dict(sorted(members.items(), key=lambda item: item[::-1]))

    def zadd(self, name: bytes, member: bytes, score: float) -> None:
        """Set the score of a member of a sorted set (ZADD)."""
        members = self._members(name, _SortedSet)
        members[member] = score
        self._entries.setdefault(name, _Entry(members))

    def zpopmin(self, name: bytes) -> bytes | None:
        """Remove and return the member with the least score, then name (ZPOPMIN)."""
        first = next(iter(self.zset(name)), None)
        if first is not None:
            self.zrem(name, first)
        return first

    def zcard(self, name: bytes) -> int:
        """Return how many members a sorted set has (ZCARD)."""
        return len(self._members(name, _SortedSet))

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many members come before this one (ZRANK)."""
        members = list(self.zset(name))
        return members.index(member) if member in members else None

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this (ZRANGEBYSCORE)."""
        members = self.zset(name).items()
        return [member for member, score in members if score <= most][:count]

    def zrem(self, name: bytes, member: bytes) -> None:
        """Remove a member of a sorted set, and the set with the last one (ZREM)."""
        self._remove(name, member, _SortedSet)

    def _find(self, name: bytes) -> _Entry | None:
        entry = self._entries.get(name)
        ends = entry.expires_at_ms if entry else None
        if ends is not None and self.now_ms > ends:
            del self._entries[name]
            return None
        return entry

    def _members(self, name: bytes, kind: type[_Members]) -> _Members:
        """Return a hash or a sorted set; if there is none, a new one, not stored."""
        entry = self._find(name)
        if entry is None:
            return kind()
        if not isinstance(entry.value, kind):
            raise WrongType
        return entry.value

    def _remove(self, name: bytes, member: bytes, kind: type[_Members]) -> None:
        members = self._members(name, kind)
        members.pop(member, None)
        if not members:
            self.delete(name)


def _new_run_id() -> str:
    return secrets.token_hex(20)


def _no_subscribers(_channel: bytes, _message: bytes) -> int:
    return 0


class MemoryNode:
    """A Redis master in memory, as far as the scripts can tell. Not thread-safe.

    It runs the Lua of ``scripts``, and replies as a real server does over RESP2.

    Args:
        clock: Its ``monotonic`` counts ttls, its ``wall`` is the node's TIME.
        new_run_id: Returns the name of a new server process.
        publish: Sends a message to the subscribers of a channel and returns how many
            there are; by default there is none.

    Raises:
        ConfigurationError: ``lupa``, which runs the scripts, is not installed.

    Attributes:
        redis: Its keys, for tests to read and to change. They are as they were at
            the last script: see ``MemoryKeyspace.look_at_clock``.
    """

    def __init__(
        self,
        clock: NodeClock = SYSTEM_CLOCK,
        *,
        new_run_id: Callable[[], str] = _new_run_id,
        publish: Callable[[bytes, bytes], int] = _no_subscribers,
    ) -> None:
        self._new_run_id = new_run_id
        self.redis = MemoryKeyspace(clock, new_run_id(), publish)
        self._host = _host()

    @property
    def run_id(self) -> str:
        """The name of the present server process; a restart changes it."""
        return self.redis.run_id.decode()

    def execute(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run one script and return the raw reply: ints, bytes, lists.

        An error of the server is returned as an ``ErrorReply`` and not raised. The
        changes that the script made before the error remain.

        Args:
            script: One of ``scripts``, or another one that uses no other commands.
            keys: Its KEYS, as text, numbers or bytes.
            args: Its ARGV, the same.
        """
        self.redis.look_at_clock()
        return self._host.run(script, _words(keys), _words(args), self.redis)

    def restart(self, *, keep_memory: bool = False) -> None:
        """Become a new process: another run id and, by default, no keys."""
        self.redis.begin(self._new_run_id().encode())
        if not keep_memory:
            self.redis.clear()

    def promote(self) -> None:
        """Become a master again that was a replica.

        It may have the keys of another server then, such as an old copy of its own.
        """
        self.redis.promote()

    def flush(self) -> None:
        """Delete all keys and stay the same process (FLUSHALL)."""
        self.redis.clear()


def _words(values: Sequence[Any]) -> list[bytes]:
    return [v if isinstance(v, bytes) else str(v).encode() for v in values]


def _host() -> ModuleType:
    try:
        from celery_redlock.scripts import host  # noqa: PLC0415  (needs lupa)
    except ImportError as error:
        raise ConfigurationError(
            f"Nodes in memory run the Lua scripts by lupa, which cannot be imported "
            f"({error}). Install it: pip install 'celery-redlock[testing]'"
        ) from error
    return host
