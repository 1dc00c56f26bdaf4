"""The node in memory, behind the methods of a `Subject`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.testing import FakeClock, MemoryNode
from celery_redlock.testing.keyspace import WrongType
from tests.contract.subjects import SOON, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.scripts import Script
    from celery_redlock.testing.keyspace import NodeClock


class MemorySubject(Subject):
    """The node in memory; with a clock that is moved, or the machine's."""

    def __init__(self, clock: NodeClock | None = None) -> None:
        super().__init__()
        self.clock = clock or FakeClock()
        self.node = MemoryNode(self.clock)

    @property
    def run_id(self) -> bytes:
        """The name that the server process gives itself."""
        return self.node.run_id.encode()

    @property
    def now_us(self) -> int:
        """The node's TIME."""
        return self.clock.wall_us()

    def run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""
        return self.node.execute(script, keys, args)

    def restart(self, *, keep_memory: bool) -> None:
        """Become another process."""
        self.node.restart(keep_memory=keep_memory)

    def flush(self) -> None:
        """Forget everything."""
        self.node.flush()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until this is so."""
        assert isinstance(self.clock, FakeClock)
        deadline = self.clock.monotonic() + SOON
        while not condition():
            assert self.clock.monotonic() < deadline
            self.clock.sleep(0.001)

    def get(self, key: str) -> bytes | None:
        """Read a string."""
        self.node.redis.look_at_clock()
        return self.node.redis.get(key.encode())

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        """Read a hash."""
        self.node.redis.look_at_clock()
        return dict(self.node.redis.hgetall(key.encode()))

    def read(self, key: str) -> bytes | dict[bytes, bytes] | None:
        """Read a key of any type."""
        try:
            return self.get(key)
        except WrongType:
            return self.hgetall(key)

    def in_line(self) -> list[bytes]:
        """Read who waits, in their order."""
        self.node.redis.look_at_clock()
        return list(self.node.redis.zset(self.line.encode()))

    def pttl(self, key: str) -> int:
        """Read a ttl: -1 for ever, -2 for no key."""
        self.node.redis.look_at_clock()
        return self.node.redis.pttl(key.encode())

    def set(self, key: str, value: str | bytes, px: int | None = None) -> None:
        """Write a string."""
        self.node.redis.look_at_clock()
        data = value if isinstance(value, bytes) else value.encode()
        self.node.redis.set(key.encode(), data, px=px)

    def hset(self, key: str, field: str, value: Any) -> None:
        """Write a field of a hash."""
        data = value if isinstance(value, bytes) else str(value).encode()
        self.node.redis.hset(key.encode(), {field.encode(): data})

    def delete(self, key: str) -> None:
        """Forget a key."""
        self.node.redis.delete(key.encode())
