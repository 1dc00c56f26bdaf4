"""The nodes that run the scripts: one in memory, or a real server.

A `Subject` is one node with the keys of one test. Both kinds have the same methods:
a test does not know on which one it runs.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts.operations import WrongType
from celery_redlock.core.transport.resp import ErrorReply, new_reader, pack
from celery_redlock.core.transport.url import parse_node
from celery_redlock.testing import FakeClock, MemoryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.scripts import Script
    from celery_redlock.devnodes import DevNode

TOKEN, OTHER = "base-a.try-1", "base-b.try-1"
HOLDER_INFO = "task\nid\nhost\n1\n2.000"
CONFIG, CLOSED, NEW = "format 2, for tests", "closed", "format 2, other tests"
UNGUARDED = "format 2, restart guard off, for tests"
STRIPE = "7"
TTL = 20_000  # ms; no test takes this long
SHORT = 30  # ms, for what has to expire
NO_KEY, NO_TTL = -2, -1  # replies of PTTL
EXACT = 2**53  # above it a double cannot tell n from n + 1
TOLERANCE = 15_000_000  # µs
SOON = 10.0  # seconds


def value(number: int, token: str = TOKEN, holder_info: str = HOLDER_INFO) -> bytes:
    """Return the expected value of a lock."""
    return f"{token}\n{number}\n{holder_info}".encode()


class Subject(ABC):
    """One node, the keys of one test, and the scripts with their arguments.

    Attributes:
        keys: The keys of the node, with the methods of a ``MemoryKeyspace``.
        clock: The clock by which the node's keys expire.
    """

    keys: Any
    clock: Clock

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(8)
        self.lock = self.key("lock:a")
        self.wait_queue = self.key("line:a")
        self.meta = self.key("meta")

    def key(self, name: str) -> str:
        """Return a key under the prefix of this test."""
        return f"{self.prefix}:{name}"

    @abstractmethod
    def run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""

    @abstractmethod
    def restart(self, *, keep_memory: bool) -> None:
        """Become another server process."""

    @property
    def run_id(self) -> bytes:
        """The name of the server process."""
        run_id: bytes = self.keys.run_id
        return run_id

    @property
    def incarnation(self) -> bytes:
        """The present incarnation of the node, as its meta key names it."""
        return self.hgetall(self.meta)[b"incarnation"]

    @property
    def is_quarantined(self) -> bool:
        """Whether the node waits for the end of a quarantine."""
        until = int(self.hgetall(self.meta).get(b"quarantine_until", 0))
        return until * 1000 > self.now_us

    def admit(self, config: str = CONFIG) -> str:
        """Let the node vote, unless it has a configuration; return what it has."""
        known = self.hgetall(self.meta).get(b"config")
        if known is not None:
            return known.decode()
        self.hset(self.meta, "config", config)
        for field in ("run_id", "incarnation", "synced"):
            self.hset(self.meta, field, self.run_id)
        return config

    @property
    def now_us(self) -> int:
        """The node's TIME."""
        now_us: int = self.keys.now_us()
        return now_us

    def flush(self) -> None:
        """Delete all keys of the node (FLUSHALL)."""
        self.keys.clear()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until this is true."""
        deadline = self.clock.monotonic() + SOON
        while not condition():
            assert self.clock.monotonic() < deadline
            self.clock.sleep(0.001)

    # -- its keys --------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Read a string."""
        self.keys.look_at_clock()
        found: bytes | None = self.keys.get(key.encode())
        return found

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        """Read a hash."""
        self.keys.look_at_clock()
        return dict(self.keys.hgetall(key.encode()))

    def read(self, key: str) -> bytes | dict[bytes, bytes] | None:
        """Read a string or a hash."""
        try:
            return self.get(key)
        except WrongType:
            return self.hgetall(key)

    def pttl(self, key: str) -> int:
        """Read a ttl in milliseconds: `NO_TTL`, `NO_KEY`."""
        self.keys.look_at_clock()
        left: int = self.keys.pttl(key.encode())
        return left

    def waiters(self) -> list[bytes]:
        """Read the wait queue, in its order."""
        self.keys.look_at_clock()
        return list(self.keys.zset(self.wait_queue.encode()))

    def counter(self, field: str = STRIPE) -> bytes | None:
        """Read one fence counter."""
        return self.counters_of_all().get(field.encode())

    def counters_of_all(self) -> dict[bytes, bytes]:
        """Read all fence counters."""
        fields = self.hgetall(self.meta).items()
        return {f: n for f, n in fields if f == b"floor" or f.isdigit()}

    def set(self, key: str, value: str | bytes, px: int | None = None) -> None:
        """Write a string."""
        self.keys.look_at_clock()
        data = value if isinstance(value, bytes) else value.encode()
        self.keys.set(key.encode(), data, px=px)

    def hset(self, key: str, field: str, value: Any) -> None:
        """Write a field of a hash."""
        data = value if isinstance(value, bytes) else str(value).encode()
        self.keys.hset(key.encode(), {field.encode(): data})

    def delete(self, key: str) -> None:
        """Delete a key."""
        self.keys.delete(key.encode())

    # -- the scripts -----------------------------------------------------------

    def acquire(  # noqa: PLR0913  (each has the value that most tests want)
        self,
        token: str = TOKEN,
        holder_info: str = HOLDER_INFO,
        ttl_ms: int = TTL,
        *,
        stripe: str = STRIPE,
        hint_us: int = 0,
        tolerance_us: int = TOLERANCE,
        config: str | None = None,
        quarantine_ms: int = 61_000,
    ) -> Any:
        """Run ACQUIRE; on a node that votes, unless there is a config."""
        config = self.admit() if config is None else config
        args = [token, holder_info, ttl_ms, stripe, hint_us, tolerance_us, config]
        keys = [self.lock, self.meta]
        return self.run(scripts.ACQUIRE, keys, [*args, quarantine_ms])

    def extend(
        self,
        token: str = TOKEN,
        ttl_ms: int = TTL,
        *,
        config: str | None = None,
        quarantine_ms: int = 61_000,
    ) -> Any:
        """Run EXTEND; on a node that votes, unless there is a config."""
        config = self.admit() if config is None else config
        args = [config, token, ttl_ms, quarantine_ms]
        return self.run(scripts.EXTEND, [self.lock, self.meta], args)

    def restore(
        self,
        token: str = TOKEN,
        ttl_ms: int = TTL,
        *,
        fence: int | str = 100,
        config: str | None = None,
    ) -> Any:
        """Run RESTORE; on a node that votes, unless there is a config."""
        config = self.admit() if config is None else config
        args = [config, token, HOLDER_INFO, ttl_ms, STRIPE, fence]
        return self.run(scripts.RESTORE, [self.lock, self.meta], args)

    def raise_fence(self, token: str = TOKEN, *, fence: int | str = 100) -> Any:
        """Run RAISE_FENCE."""
        args = [token, HOLDER_INFO, STRIPE, fence]
        return self.run(scripts.RAISE_FENCE, [self.lock, self.meta], args)

    def release(self, token: str = TOKEN, *, keep_ms: int = 0) -> Any:
        """Run RELEASE."""
        return self.run(scripts.RELEASE, [self.lock, self.wait_queue], [token, keep_ms])

    def inspect(self) -> Any:
        """Run INSPECT."""
        return self.run(scripts.INSPECT, [self.lock], [])

    def request_cancel(self, token: str = TOKEN, who: str = "task[id]") -> Any:
        """Run REQUEST_CANCEL."""
        return self.run(scripts.REQUEST_CANCEL, [self.lock], [token, who])

    def join_wait_queue(
        self, waiter: str = "w/1", rank: int = 1, ttl_ms: int = TTL
    ) -> Any:
        """Run JOIN_WAIT_QUEUE."""
        keys, args = [self.lock, self.wait_queue], [waiter, rank, ttl_ms]
        return self.run(scripts.JOIN_WAIT_QUEUE, keys, args)

    def leave_wait_queue(self, waiter: str = "w/1", free_in_ms: str = "0") -> Any:
        """Run LEAVE_WAIT_QUEUE."""
        keys, args = [self.lock, self.wait_queue], [waiter, free_in_ms]
        return self.run(scripts.LEAVE_WAIT_QUEUE, keys, args)

    def counters(self, config: str = CONFIG) -> Any:
        """Run COUNTERS."""
        return self.run(scripts.COUNTERS, [self.meta], [config])

    def sync(
        self,
        incarnation: bytes,
        *pairs: Any,
        set_floor: int = 0,
        config: str = CONFIG,
    ) -> Any:
        """Run SYNC."""
        args = [config, incarnation, set_floor, TOLERANCE, *pairs]
        return self.run(scripts.SYNC, [self.meta], args)

    def initialize(self, config: str = CONFIG, hint_us: int = 0) -> Any:
        """Run INITIALIZE."""
        return self.run(scripts.INITIALIZE, [self.meta], [config, hint_us, TOLERANCE])

    def close(self, quarantine_ms: int = 61_000) -> Any:
        """Run CLOSE, to move the node from `CONFIG` to `NEW`."""
        args = [CONFIG, CLOSED, NEW, quarantine_ms]
        return self.run(scripts.CLOSE, [self.meta], args)

    def open(self, *pairs: Any) -> Any:
        """Run OPEN, to move the node from `CONFIG` to `NEW`."""
        return self.run(scripts.OPEN, [self.meta], [CLOSED, NEW, *pairs])


class MemorySubject(Subject):
    """The node in memory, with a clock that tests move, or the machine's."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.clock = clock or FakeClock()
        self.use(MemoryNode(self.clock))

    def use(self, node: MemoryNode) -> None:
        """Replace the node, by one that publishes to a test."""
        self.node, self.keys = node, node.redis

    def run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""
        return self.node.execute(script, keys, args)

    def restart(self, *, keep_memory: bool) -> None:
        """Become another server process."""
        self.node.restart(keep_memory=keep_memory)


class ServerSubject(Subject):
    """A real server, over a plain RESP2 connection."""

    clock = SYSTEM_CLOCK

    def __init__(self, node: DevNode) -> None:
        super().__init__()
        self.node = node
        self.node.start()
        self.keys = _ServerKeys(self.node.url)

    def anew(self) -> Self:
        """Return this server with keys that no test has used."""
        Subject.__init__(self)
        return self

    def stop(self) -> None:
        """End the server."""
        self.keys.disconnect()
        self.node.stop()

    def command(self, *words: Any) -> Any:
        """Send one command and return the raw reply, errors included."""
        return self.keys.command(*words)

    def run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""
        return self.command("EVAL", script.source, len(keys), *keys, *args)

    def restart(self, *, keep_memory: bool) -> None:
        """Become another server process."""
        self.keys.disconnect()
        self.node.restart(keep_memory=keep_memory)
        self.keys = _ServerKeys(self.node.url)


class _ServerKeys:
    """The methods of a ``MemoryKeyspace``, as commands to a server."""

    def __init__(self, url: str) -> None:
        self._connection = parse_node(url).connection(SOON)
        self._connection.connect()
        self._reader = new_reader()
        info = self._call("INFO", "server")
        self.run_id: bytes = info.partition(b"run_id:")[2].split()[0]

    def disconnect(self) -> None:
        self._connection.disconnect()

    def command(self, *words: Any) -> Any:
        sock: Any = self._connection._sock  # noqa: SLF001  (the bytes are the point)
        sock.sendall(pack(words))
        while (reply := self._reader.gets()) is False:
            data = sock.recv(65536)
            assert data, "the server has closed the connection"
            self._reader.feed(data)
        return reply

    def _call(self, *words: Any) -> Any:
        reply = self.command(*words)
        if isinstance(reply, ErrorReply):
            assert "WRONGTYPE" in str(reply), reply
            raise WrongType
        return reply

    def look_at_clock(self) -> None:
        pass

    def now_us(self) -> int:
        seconds, microseconds = self._call("TIME")
        return int(seconds) * 1_000_000 + int(microseconds)

    def clear(self) -> None:
        self._call("FLUSHALL")

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._call("GET", key)
        return value

    def set(self, key: bytes, value: bytes, *, px: int | None) -> None:
        self._call("SET", key, value, *(("PX", px) if px else ()))

    def delete(self, key: bytes) -> None:
        self._call("DEL", key)

    def pttl(self, key: bytes) -> int:
        left: int = self._call("PTTL", key)
        return left

    def hgetall(self, key: bytes) -> dict[bytes, bytes]:
        pairs = self._call("HGETALL", key)
        return dict(zip(pairs[::2], pairs[1::2], strict=True))

    def hset(self, key: bytes, fields: Mapping[bytes, bytes]) -> None:
        self._call("HSET", key, *(word for pair in fields.items() for word in pair))

    def zset(self, key: bytes) -> list[bytes]:
        members: list[bytes] = self._call("ZRANGE", key, 0, -1)
        return members
