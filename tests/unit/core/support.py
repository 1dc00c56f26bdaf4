"""What tests on fake nodes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.renewal import Watchdog

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes

__all__ = [
    "Stepped",
    "args_of",
    "asked",
    "counters",
    "forget",
    "holders",
    "put",
    "ttls",
]

STRIPE_OF_K = b"1885"  # crc32("k") % 4096


class Stepped(Watchdog):
    """A watchdog whose thread is the test."""

    def __init__(self, redlock: Redlock) -> None:
        super().__init__(redlock)
        self.redlock = redlock

    def start(self) -> None:
        """Start nothing: the test makes the steps."""

    def run_for(self, clock: FakeClock, seconds: float) -> None:
        """Do what the thread would do in so many seconds."""
        end = clock.monotonic() + seconds
        for _ in range(100_000):
            next_at = self.step()
            if next_at is None or next_at > end:
                clock.advance(end - clock.monotonic())
                return
            clock.advance(next_at - clock.monotonic())
        pytest.fail("the watchdog does not get on")


def asked(nodes: FakeNodes) -> list[str]:
    """Return the names of the scripts that were sent, in order."""
    return [question.script.name for question in nodes.asked]


def args_of(nodes: FakeNodes, script: str) -> list[list[Any]]:
    """Return the arguments with which this script was sent, each time."""
    calls = [question.call for question in nodes.asked]
    return [list(args) for sent, _, args in calls if sent.name == script]


def _lock(key: str) -> bytes:
    return f"redlock:lock:{key}".encode()


def holders(nodes: FakeNodes, key: str = "k") -> list[str]:
    """Return the token that each node names as the holder; "" where there is none."""
    tokens = []
    for node in nodes.nodes:
        node.memory.redis.look_at_clock()
        value = node.memory.redis.get(_lock(key)) or b""
        tokens.append(value.decode().partition("\n")[0])
    return tokens


def ttls(nodes: FakeNodes, key: str = "k") -> list[int]:
    """Return for how many milliseconds each node keeps the lock."""
    for node in nodes.nodes:
        node.memory.redis.look_at_clock()
    return [node.memory.redis.pttl(_lock(key)) for node in nodes.nodes]


def put(
    nodes: FakeNodes, index: int, token: str, *, ttl_ms: int = 10_000, key: str = "k"
) -> None:
    """Let one node name this token as the holder."""
    redis = nodes.nodes[index].memory.redis
    redis.look_at_clock()
    value = f"{token}\n5\ntask\nid-of-{token}\nhost\n7\n9.5"
    redis.set(_lock(key), value.encode(), px=ttl_ms)


def forget(nodes: FakeNodes, *indexes: int, key: str = "k") -> None:
    """Take the lock away on these nodes, as an operator or a crash does."""
    for index in indexes:
        nodes.nodes[index].memory.redis.delete(_lock(key))


def counters(nodes: FakeNodes, field: bytes = STRIPE_OF_K) -> list[int]:
    """Return one fence counter of each node; 0 where there is none."""
    return [
        int(node.memory.redis.hget(b"redlock:fence", field) or 0)
        for node in nodes.nodes
    ]
