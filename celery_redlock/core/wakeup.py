"""Hear that a lock has been released: one subscription per node and process.

::

    a waiter lines up ──► thread starts ──► connects, subscribes ──► hears its name
                             ▲                                          │
                             └── nobody has waited for 30 s: it ends ◄──┘

Every process has a channel of its own, whatever it waits for, and nodes say on it
whose turn it is (``core.scripts.line``): nothing is subscribed to when a wait
begins, and nobody is woken for others. A node to which there is no connection is
heard of as soon as there is one, by a nudge to look again.

What is heard is a hint. Nothing rests on it but how soon somebody looks.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import secrets
import selectors
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from celery_redlock.core.clock import SYSTEM_CLOCK, Clock
from celery_redlock.core.connector import Connector
from celery_redlock.core.link import Link, would_block
from celery_redlock.core.wire import ErrorReply, pack
from celery_redlock.logs import about

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.address import NodeAddress
    from celery_redlock.core.timing import Timing

__all__ = ["Ears", "Waiter"]

log = logging.getLogger("celery_redlock.wakeup")

_READ_SIZE = 4096
_CHANNEL_BYTES = 16
_GLANCE = 0.002  # seconds between two looks at a connection that is being made
_LOOK_AROUND = 0.5  # seconds between two looks at what else there is to do
_IDLE = 30.0  # seconds without a waiter after which the thread ends
_PRESUMED_DEAD = 10.0  # seconds of silence, of a thread that looks around twice in one
_PAUSE_AFTER_ERROR = 0.1
_MS = 1000


class Waiter:
    """One wait of one thread or greenlet.

    Attributes:
        name: What nodes call it.
        turns: For each node that has said that it is its turn: since when, or from
            when on, the lock can be tried for.
        nudged: Whether something happened that it should look at for itself.
        free_at: From when on, as it was told last, the lock can be tried for.
    """

    __slots__ = ("__weakref__", "_event", "free_at", "name", "nudged", "turns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.turns: dict[int, float] = {}
        self.nudged = False
        self.free_at = 0.0
        self._event = threading.Event()

    def listen(self, seconds: float) -> None:
        """Return when there is news, or after so many seconds."""
        self._event.wait(seconds)
        self._event.clear()

    def call(self, index: int, at: float) -> None:
        """Say for one node that it is its turn, from that instant on."""
        self.turns[index] = self.free_at = at
        self._event.set()

    def nudge(self) -> None:
        """Have it look for itself."""
        self.nudged = True
        self._event.set()

    def forget(self) -> None:
        """Begin anew."""
        self.turns, self.nudged = {}, False


_all_ears: WeakSet[Ears] = WeakSet()


def _after_fork_in_child() -> None:
    for ears in list(_all_ears):
        ears.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Ears:
    """Listens to all nodes on behalf of those who wait in this process.

    The thread starts with the first waiter. A forked child starts anew.

    Args:
        addresses: The nodes.
        prefix: Of the channels.
        timing: How long a connection may take to be made.
        clock: Reads time.
    """

    def __init__(
        self,
        addresses: Sequence[NodeAddress],
        prefix: str,
        timing: Timing,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._prefix = prefix
        self._clock = clock
        self._ears = [
            _Ear(index, address, clock, timing.connect_timeout)
            for index, address in enumerate(addresses)
        ]
        self._selector: selectors.BaseSelector | None = None
        self.forget()
        _all_ears.add(self)

    def forget(self) -> None:
        """Start anew in a forked child, touching nothing of the parent's."""
        for ear in self._ears:
            ear.forget()
        if self._selector:
            self._selector.close()
        self._selector = None
        # Weakly: one whose wait was struck before it had a name is nobody's.
        self._waiters: WeakValueDictionary[str, Waiter] = WeakValueDictionary()
        self._starting = threading.Lock()
        self._thread = 0  # the number of the one that runs
        self._threads = 0
        self._alive_at = 0.0
        self._closing = False
        self._count = 0
        unique = secrets.token_hex(_CHANNEL_BYTES)
        self.channel = f"{self._prefix}:wake:{unique}"

    @property
    def listening(self) -> int:
        """To how many nodes we listen."""
        return sum(ear.listens for ear in self._ears)

    def enlist(self) -> Waiter:
        """Return a new waiter, who is told of its turn until it is dismissed."""
        with self._starting:
            self._closing = False
            self._count += 1
            waiter = Waiter(f"{self.channel}/{self._count}")
            self._waiters[str(self._count)] = waiter
            now = self._clock.monotonic()
            if not self._thread or now - self._alive_at > _PRESUMED_DEAD:
                self._threads += 1
                self._thread, self._alive_at = self._threads, now
                try:
                    # Not by `threading`, for the reason in `Connector.begin`.
                    _thread.start_new_thread(self._run, (self._thread,))
                except RuntimeError:  # there are too many; people look instead
                    self._thread = 0
        return waiter

    def dismiss(self, waiter: Waiter) -> None:
        """Tell it nothing any more."""
        self._waiters.pop(waiter.name.rpartition("/")[2], None)

    def close(self) -> None:
        """Have the thread end soon, and its connections with it."""
        self._closing = True

    # -- the thread -----------------------------------------------------------

    def _run(self, number: int) -> None:
        # Looked up late: gevent and eventlet replace it when they patch.
        selector = self._selector = selectors.DefaultSelector()
        for ear in self._ears:
            ear.close()  # of one that was presumed dead
        needed_at = self._clock.monotonic()
        while not self._is_done(number, needed_at):
            self._alive_at = self._clock.monotonic()
            if self._waiters:
                needed_at = self._alive_at
            try:
                self._step(selector)
            except Exception:
                log.exception("Listening for releases met an error and goes on.")
                self._clock.sleep(_PAUSE_AFTER_ERROR)
        selector.close()

    def _is_done(self, number: int, needed_at: float) -> bool:
        """End if nobody has waited for a while; the next waiter starts another."""
        with self._starting:
            if number != self._thread:
                return True
            idle = not self._waiters and self._clock.monotonic() - needed_at > _IDLE
            if self._closing or idle:
                self._thread = 0
                for ear in self._ears:
                    ear.close()
            return not self._thread

    def _step(self, selector: selectors.BaseSelector) -> None:
        for ear in self._ears:
            ear.tend(selector, self.channel)
        arriving = any(ear.is_arriving for ear in self._ears)
        for key, _ in selector.select(_GLANCE if arriving else _LOOK_AROUND):
            ear = key.data
            for message in ear.receive():
                self._take_in(ear, message)

    def _take_in(self, ear: _Ear, message: Any) -> None:
        if isinstance(message, ErrorReply):
            ear.refuse(str(message))
        elif message[0] == b"subscribe":
            ear.listens = True
            for ref in self._waiters.valuerefs():  # a list: others come and go
                if waiter := ref():
                    waiter.nudge()
        elif message[0] == b"message":
            name, _, ms = message[2].decode(errors="replace").partition(" ")
            called = self._waiters.get(name)
            if called is not None and ms.isdecimal():
                called.call(ear.index, self._clock.monotonic() + int(ms) / _MS)


class _Ear:
    """The subscription on one node."""

    def __init__(
        self, index: int, address: NodeAddress, clock: Clock, timeout: float
    ) -> None:
        self.index = index
        self.listens = False
        self._label = address.name
        self._connector = Connector(address, clock=clock, timeout=timeout)
        self._link: Link | None = None
        self._selector: selectors.BaseSelector | None = None
        self._refused = False

    @property
    def is_arriving(self) -> bool:
        return self._link is None and self._connector.is_hopeful

    def forget(self) -> None:
        link, self._link = self._link, None
        self.listens = False
        self._connector.forget()
        if link:
            link.disown()

    def tend(self, selector: selectors.BaseSelector, channel: str) -> None:
        """Take a new connection, or start one."""
        if self._link:
            return
        arrival = self._connector.take()
        if isinstance(arrival, Link):
            self._connector.settle(usable=True)
            subscribe, sent = pack("SUBSCRIBE", channel), 0
            with contextlib.suppress(OSError):
                sent = arrival.sock.send(subscribe)
            if sent < len(subscribe):
                arrival.close()
                return
            self._selector, self._link = selector, arrival
            selector.register(arrival.sock, selectors.EVENT_READ, self)
        self._connector.begin()

    def receive(self) -> list[Any]:
        """Return the messages that have come."""
        link, messages = self._link, []
        if link is None:
            return []
        try:
            while data := link.sock.recv(_READ_SIZE):
                link.reader.feed(data)
                if len(data) < _READ_SIZE and not hasattr(link.sock, "pending"):
                    break
            else:
                self.drop()
        except OSError as error:
            if not would_block(error):
                self.drop()
        try:
            while (message := link.reader.gets()) is not False:
                messages.append(message)
        except ErrorReply:  # it does not speak the protocol of Redis
            self.drop()
        return messages

    def refuse(self, why: str) -> None:
        """Note that the node does not let us subscribe; say so once."""
        if not self._refused:
            self._refused = True
            log.warning(
                "Node %s cannot be listened to: %s. Who waits for a lock asks it again "
                "and again instead.",
                self._label,
                why,
                extra=about("node-unheard", node=self._label, reason=why),
            )

    def close(self) -> None:
        """Close the connection, also one that is just being made."""
        self._connector.abandon()
        self.drop()

    def drop(self) -> None:
        """Leave the connection; another one is made."""
        link, self._link = self._link, None
        self.listens = False
        if link:
            with contextlib.suppress(KeyError, ValueError, RuntimeError):
                if self._selector:
                    self._selector.unregister(link.sock)
            link.close()
