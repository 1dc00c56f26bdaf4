"""Brokers that keep their messages over a crash: Redis and RabbitMQ."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import redis

from tests.harness.processes import RedisServer
from tests.harness.servers import RabbitMQ


class DurableRedis(RedisServer):
    """A redis-server that writes each command to disk before it answers."""

    # Seconds; a worker that is paused for longer counts as dead.
    options: ClassVar[dict[str, Any]] = {
        "visibility_timeout": 10,
        "unacked_mutex_expire": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }

    def __init__(self, folder: Path, **config: str) -> None:
        self._data = folder
        super().__init__(
            appendonly="yes",
            appendfsync="always",
            auto_aof_rewrite_percentage="0",  # `dropped` reads the whole history
            dir=f'"{folder}"',
            **config,
        )

    def is_idle(self) -> bool:
        """Tell whether no message is queued, delayed or being worked on."""
        with redis.Redis.from_url(self.url, socket_timeout=5, protocol=2) as client:
            return not client.llen("celery") and not client.hlen("unacked")

    def dropped(self) -> set[str]:
        """Return the jobs whose message was taken from the queue and is lost.

        Celery's Redis transport takes a message from the queue, and records in a
        second step that it has the message. If a worker, a connection or the broker
        dies in between, the message is lost. The append-only file shows this: the last
        command with such a message puts it into the queue.
        """
        is_queued: dict[str, bool] = {}
        files = [*self._data.glob("*.aof"), *self._data.glob("*/*.incr.aof")]
        for command in itertools.chain.from_iterable(map(_commands, files)):
            if command[0] in (b"LPUSH", b"RPUSH", b"HSET") and len(command) > 2:
                found = _ID.search(command[-1])
                if found:
                    is_queued[found[1].decode()] = command[0] != b"HSET"
        return {job for job, was_queued in is_queued.items() if was_queued}


_ID = re.compile(rb'"id": "([0-9a-f-]{36})"')


def _commands(file: Path) -> Iterator[list[bytes]]:
    """Read an append-only file; a crash may have cut off its end."""
    data, at = file.read_bytes(), 0

    def number() -> int:
        nonlocal at
        end = data.index(b"\r\n", at)
        value, at = int(data[at + 1 : end]), end + 2
        return value

    with contextlib.suppress(ValueError):
        while at < len(data):
            if data[at : at + 1] == b"#":  # an annotation
                at = data.index(b"\r\n", at) + 2
                continue
            words = []
            for _ in range(number()):
                length = number()
                words.append(data[at : at + length])
                at += length + 2
            yield words


class DurableRabbitMQ(RabbitMQ):
    """A RabbitMQ that confirms each message after it has stored the message."""

    options: ClassVar[dict[str, Any]] = {"confirm_publish": True}

    def is_idle(self) -> bool:
        """Return False: the question would be slow."""
        return False

    def dropped(self) -> set[str]:
        """Return nothing: its transport loses no message."""
        return set()


BROKERS: dict[str, type[DurableRedis | DurableRabbitMQ]] = {
    "redis": DurableRedis,
    "rabbitmq": DurableRabbitMQ,
}
