"""A Redis broker that remembers, and what it remembers."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

import redis

from tests.worker.harness.processes import LocalRedis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["DurableRedis"]


class DurableRedis(LocalRedis):
    """A redis-server that remembers, over any crash, what it has acknowledged."""

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        durable = {
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": 0,  # the file is evidence; see `dropped`
            "dir": self.folder,
        }
        flags = [text for key, value in durable.items() for text in (f"--{key}", value)]
        return [*super().command(), *map(str, flags)]

    def idles(self) -> bool:
        """Tell whether no message is queued, delayed or being worked on."""
        url = str(self.celeryconfig["url"])
        with redis.Redis.from_url(url, socket_timeout=5, protocol=2) as client:
            return not client.llen("celery") and not client.hlen("unacked")

    def dropped(self) -> set[str]:
        """Return the jobs whose last message was taken and is nowhere any more.

        Celery's Redis transport takes a message off the queue and says in a second
        step that it has it. A worker, a connection or a broker that dies in between
        takes the message along. The broker has written down all it did: the last
        that it did with such a message is that it was put into the queue.
        """
        last: dict[str, bool] = {}
        files = [*self.folder.glob("*.aof"), *self.folder.glob("*/*.incr.aof")]
        for command in itertools.chain.from_iterable(map(_commands, files)):
            if command[0] in (b"LPUSH", b"RPUSH", b"HSET") and len(command) > 2:
                found = _ID.search(command[-1])
                if found:
                    last[found[1].decode()] = command[0] != b"HSET"
        return {job for job, was_queued in last.items() if was_queued}


_ID = re.compile(rb'"id": "([0-9a-f-]{36})"')


def _commands(file: Path) -> Iterator[list[bytes]]:
    """Read an append-only file, up to where it may have been cut off."""
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
