"""What a node in memory knows of those who wait for a lock.

By default nobody can subscribe to it: it takes all who wait for gone, as a server does
whose waiters have lost their connections. They find out by looking.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import FREE, GRANTED, TAKEN
from celery_redlock.testing.keyspace import WrongType

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.testing.keyspace import Keyspace

__all__ = ["LineScripts", "nobody_hears"]


def nobody_hears(_channel: bytes, _message: bytes) -> int:
    """Tell a message to those who listen to a channel. Nobody does."""
    return 0


class LineScripts:
    """The scripts of ``core.scripts.line``, restated in Python.

    There is a method for each script, of the same name, with its KEYS and ARGV.

    Args:
        redis: The keys of the node.
        publish: Called with a channel and a message; returns how many hear it.
    """

    def __init__(self, redis: Keyspace, publish: Callable[[bytes, bytes], int]) -> None:
        self._redis = redis
        self._publish = publish

    def line_up(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Wait in line, or keep one's place there, and tell who holds the lock."""
        lock, line = keys
        waiter, rank, ttl_ms = args
        self._redis.zadd(line, waiter, float(rank))
        self._redis.pexpire(line, int(ttl_ms))
        value = self._redis.get(lock)
        return [FREE] if value is None else [TAKEN, value, self._redis.pttl(lock)]

    def step_out(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Leave the line. Who goes without the lock passes on that it is free."""
        lock, line = keys
        waiter, after_ms = args
        self._redis.zrem(line, waiter)
        if after_ms and (after_ms != b"0" or self._redis.get(lock) is None):
            self.wake_first(line, after_ms)
        return [GRANTED, 0]

    def wake_first(self, line: bytes, after_ms: bytes) -> None:
        """Wake the first who hears it; the others before it are gone."""
        with contextlib.suppress(WrongType):
            for waiter in self._redis.zset(line):
                self._redis.zrem(line, waiter)
                channel, _, name = waiter.rpartition(b"/")
                if self._publish(channel, name + b" " + after_ms):
                    return
