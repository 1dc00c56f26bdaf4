"""One node in memory: its keys, a run id, and the scripts over them.

As on a server, a key lives to the end of the millisecond in which its ttl ends, and all
commands of one script see the same instant.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import ConfigurationError
from celery_redlock.scripts.keyspace import Keyspace, WrongType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from celery_redlock.scripts import Script
    from celery_redlock.scripts.keyspace import Entry


class NodeClock(Protocol):
    """The two clocks of a node. A real server counts ttls by its wall clock."""

    def monotonic(self) -> float:
        """Seconds by which ttls are counted."""

    def wall(self) -> float:
        """Seconds since 1970 (TIME)."""


class MemoryKeyspace(Keyspace):
    """Keys that hold strings, hashes or sorted sets, and a clock.

    Attributes:
        started_ms: When the process began, in ms since 1970; None once it has voted.
    """

    def __init__(
        self, clock: NodeClock, replid: str, publish: Callable[[bytes, bytes], int]
    ) -> None:
        super().__init__()
        self._clock = clock
        self._publish = publish
        self.begin(replid.encode())
        self.look_at_clock()

    def begin(self, replid: bytes) -> None:
        """Begin as a new process: it has never voted."""
        self.replid = replid
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
        self._latest_ms = round(self._clock.monotonic() * 1_000_000) // 1000

    def now_us(self) -> int:
        """Return microseconds since 1970 (TIME)."""
        return round(self._clock.wall() * 1e6)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message and return how many subscribers get it (PUBLISH)."""
        return self._publish(channel, message)

    def keys(self) -> list[bytes]:
        """Return the names of all keys that are alive."""
        return [name for name in list(self._entries) if self._at(name)]

    def clear(self) -> None:
        """Delete all keys (FLUSHALL)."""
        self._entries.clear()

    def _at(self, name: bytes, kind: str = "") -> Entry | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        ends = entry.expires_at_ms
        if ends is not None and self._latest_ms > ends:
            del self._entries[name]
            return None
        if kind and entry.kind != kind:
            raise WrongType
        return entry


class MemoryNode:
    """A Redis master in memory, as far as the scripts can tell. Not thread-safe.

    It runs the Lua of ``scripts``, and replies as a real server does over RESP2.

    Args:
        clock: Its ``monotonic`` counts ttls, its ``wall`` is the node's TIME.
        new_replid: Returns the name of the memory of a new server process.
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
        new_replid: Callable[[], str] = lambda: secrets.token_hex(20),
        publish: Callable[[bytes, bytes], int] = lambda *_: 0,
    ) -> None:
        self._new_replid = new_replid
        self.redis = MemoryKeyspace(clock, new_replid(), publish)
        self._host = _host()

    @property
    def replid(self) -> str:
        """The name of its memory; a restart and a promotion change it."""
        return self.redis.replid.decode()

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
        """Become a new process: another replid and, by default, no keys."""
        self.redis.begin(self._new_replid().encode())
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
