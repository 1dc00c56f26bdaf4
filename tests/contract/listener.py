"""A subscription to the channel of waiters on a node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import redis

from celery_redlock.testing import MemoryNode
from tests.contract.subjects import (
    SOON,
    MemorySubject,
    ServerSubject,
    StoreSubject,
    Subject,
)

LAST = b"the last message"  # the end of what a channel can have carried


class Listener:
    """A subscription to a channel of a node, and its messages."""

    def __init__(self, subject: Subject, channel: str) -> None:
        self.channel = channel
        self._messages: list[bytes] = []
        self._server: Any = None
        self._subscription: Any = None
        if isinstance(subject, StoreSubject):
            self._server = _StoreServer(subject, channel)
            self._subscription = self._server
        elif isinstance(subject, ServerSubject):
            self._server = redis.Redis.from_url(subject.node.url, retry=None)
            self._subscription = self._server.pubsub()
            self._subscription.subscribe(channel)
            assert self._subscription.get_message(timeout=SOON)
        elif isinstance(subject, MemorySubject):
            subject.use(MemoryNode(subject.clock, publish=self._receive))

    def _receive(self, channel: bytes, message: bytes) -> int:
        listens = channel == self.channel.encode()
        self._messages += [message] * listens
        return int(listens)

    def messages(self) -> list[bytes]:
        """Return the messages so far, each once."""
        if self._subscription:
            self._server.publish(self.channel, LAST)
            data = (message["data"] for message in self._subscription.listen())
            return list(itertools.takewhile(lambda each: each != LAST, data))
        messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        """End the subscription."""
        if self._subscription:
            self._subscription.close()
            self._server.close()


class _StoreServer:
    """The same for a store, whose URL redis-py does not know."""

    def __init__(self, subject: StoreSubject, channel: str) -> None:
        self._subject = subject
        self._keys = subject.subscription(channel)

    def publish(self, channel: str, message: bytes) -> None:
        assert self._subject.command("PUBLISH", channel, message) == 1

    def listen(self) -> Iterator[dict[str, bytes]]:
        while True:
            yield {"data": self._keys.reply()[2]}

    def close(self) -> None:
        self._keys.disconnect()
