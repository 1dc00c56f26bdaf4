"""The part of a store on which the scripts run in this process.

``testing.memory_node`` is one in memory. A store such as PostgreSQL provides the keys
of one transaction: ``stores.keyspace``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CommandError(Exception):
    """A command is refused: the script ends with this error, unless by ``pcall``."""


class WrongType(CommandError):  # noqa: N818  (Redis calls it WRONGTYPE)
    """The key holds a value of another type."""

    def __init__(self) -> None:
        super().__init__(
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        )


class Keyspace(Protocol):
    """The keys of one node: strings, hashes and sorted sets that can expire.

    Names and values are bytes, durations are milliseconds. The methods have the names
    of the Redis commands. While one script runs, no other script sees or changes
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

    @property
    def evicted(self) -> bytes:
        """Number of keys that the process has evicted (INFO); b"": it never does."""

    @property
    def evicts(self) -> bytes:
        """Policy by which the process may evict keys now; b"" if it may not."""

    def proven_start_ms(self) -> int | None:
        """Return the start of a process that provably has not voted; else None.

        In milliseconds since 1970.
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

    def delete(self, name: bytes) -> bool:
        """Delete a key of any type; tell whether it was there (DEL)."""

    def pttl(self, name: bytes) -> int:
        """Return the milliseconds left; -1 without a ttl, -2 for no key (PTTL)."""

    def pexpire(self, name: bytes, milliseconds: int) -> bool:
        """Set the ttl of a key; 0 deletes it. Tell whether it was there (PEXPIRE)."""

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

    def zscore(self, name: bytes, member: bytes) -> float | None:
        """Return the score of a member of a sorted set (ZSCORE)."""

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
