"""Listen for wake-ups of waiters: one subscription per node and process.

::

    a waiter is added ──► thread starts ──► connects, subscribes ──► wakes waiters
                             ▲                                          │
                             └── no waiter for 30 s: the thread ends ◄──┘

Every process has one channel, for all locks that it waits for. A node that releases a
lock publishes the name of the first waiter there (the scripts of the wait queue). So
nothing is subscribed to when a wait begins, and no process is woken for another one's
waiter. When a node is connected to, every waiter is asked to look at its lock once,
because it may have missed a wake-up.

A wake-up is a hint. Only the delay of a waiter depends on it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import secrets
import selectors
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from celery_redlock.basics.callbacks import log_safely
from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.process import Background, OfOneProcess, ThreadRun
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.basics.selector import new_selector
from celery_redlock.wire.connection import ConnectionLost
from celery_redlock.wire.connector import Connector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.basics.timing import Timing
    from celery_redlock.scripts.keys import Keys
    from celery_redlock.wire.connection import Connection
    from celery_redlock.wire.requests import Event
    from celery_redlock.wire.store_connection import StoreConnection
    from celery_redlock.wire.url import NodeAddress


log = logging.getLogger(__name__)

_CHANNEL_BYTES = 16
_POLL_EVERY = 0.002  # seconds between two looks at a connection that is being made
_SELECT_FOR = 0.5  # seconds, at most, without looking for other work
_IDLE = 30.0  # seconds without a waiter after which the thread ends
_PAUSE_AFTER_ERROR = 0.1
_ASK_AGAIN = 5.0  # seconds after a refusal
_MS = 1000


class Waiter:
    """One wait of one thread or greenlet.

    Attributes:
        name: Its name on the nodes.
        wakeups: For each node that woke it: the instant from which the lock can be
            tried for.
        must_look: Whether it may have missed a wake-up and must look for itself.
        free_at: The instant from which the lock can be tried for, by the last
            wake-up.
    """

    __slots__ = (
        "__weakref__",
        "_event",
        "_news",
        "free_at",
        "must_look",
        "name",
        "wakeups",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.wakeups: dict[int, float] = {}
        self.must_look = False
        self.free_at = 0.0
        # A lock that is free while there is news. An exception in the middle of
        # `threading.Event.wait` may leave the lock of the event taken for ever.
        self._news = threading.Lock()
        self._take_news(0.0)
        self._event: Event | None = None

    def listen(self, seconds: float) -> None:
        """Return when there is news, or after so many seconds."""
        self._take_news(seconds)

    def notify(self, event: Event | None) -> None:
        """Release this event when there is news, instead of ``listen``."""
        self._event = event
        if event is None:
            self._take_news(0.0)
        elif not self._news.locked():
            event.release()

    def wake(self, index: int, at: float) -> None:
        """Enter a wake-up of one node, for that instant."""
        self.wakeups[index] = self.free_at = at
        self._tell()

    def _take_news(self, seconds: float) -> None:
        self._news.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # there is news already
            self._news.release()
        event = self._event  # read once: the waiter may have just stopped to wait
        if event is not None:
            event.release()

    def request_look(self) -> None:
        """Have the waiter look at the lock for itself."""
        self.must_look = True
        self._tell()

    def reset(self) -> None:
        """Drop all wake-ups before a new look."""
        self.wakeups, self.must_look = {}, False


class WakeupListener(OfOneProcess):
    """Listens to all nodes on behalf of the waiters of this process.

    The thread starts with the first waiter. A forked child starts with a new one.

    Args:
        addresses: The nodes.
        keys: The names of the channels.
        timing: Limits how long a connection may take to be made.
        clock: Reads time.
    """

    def __init__(
        self,
        addresses: Sequence[NodeAddress],
        keys: Keys,
        timing: Timing,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__()
        self._keys = keys
        self._clock = clock
        self._subscriptions = [
            _Subscription(index, address, clock, timing.connect_timeout)
            for index, address in enumerate(addresses)
        ]
        self._selector: selectors.BaseSelector | None = None
        self.forget_parent()

    def forget_parent(self) -> None:
        """Start anew in a forked child, touching nothing of the parent's."""
        for subscription in self._subscriptions:
            subscription.forget_parent()
        if self._selector:
            self._selector.close()
        self._selector = None
        # Weakly: a wait that is interrupted before it has a name leaves none behind.
        self._waiters: WeakValueDictionary[str, Waiter] = WeakValueDictionary()
        self._background = Background("redlock-listener", self._run, self._clock)
        self._closing = False
        self._count = itertools.count(1)
        unique = secrets.token_hex(_CHANNEL_BYTES)
        self.channel = self._keys.channel(unique)

    @property
    def listening(self) -> int:
        """The number of nodes that are subscribed to."""
        return sum(subscription.listens for subscription in self._subscriptions)

    def add_waiter(self) -> Waiter:
        """Return a new waiter, which is woken until it is removed."""
        self.notice_fork()
        number = str(next(self._count))
        waiter = Waiter(f"{self.channel}/{number}")
        self._waiters[number] = waiter
        self._closing = False
        self._background.ensure()  # if there can be none, waiters look more often
        return waiter

    def remove_waiter(self, waiter: Waiter) -> None:
        """Stop waking this waiter."""
        self._waiters.pop(waiter.name.rpartition("/")[2], None)

    def close(self) -> None:
        """Have the thread end soon, and its connections with it."""
        self._closing = True

    # -- the thread -----------------------------------------------------------

    def _run(self, run: ThreadRun) -> None:
        needed_at = self._clock.monotonic()
        while not self._background.is_over(run):
            now = self._clock.monotonic()
            if self._waiters:
                needed_at = now
            try:
                if self._is_done(needed_at, now):
                    # First: the thread of the next waiter uses the same connections.
                    self._disconnect()
                    self._background.ends(run, self._has_work)
                else:
                    self._step()
            except Exception:  # noqa: BLE001  (it is logged)
                text = "The listener for wake-ups had an error and continues."
                log_safely(log, logging.ERROR, text, exc_info=True)
                self._clock.sleep(_PAUSE_AFTER_ERROR)

    def _is_done(self, needed_at: float, now: float) -> bool:
        """End if there was no waiter for a while; the next one starts a new thread."""
        return self._closing or (not self._waiters and now - needed_at > _IDLE)

    def _has_work(self) -> bool:
        return bool(self._waiters) and not self._closing

    def _disconnect(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        selector, self._selector = self._selector, None
        if selector:
            selector.close()

    def _step(self) -> None:
        selector = self._selector = self._selector or new_selector()
        for subscription in self._subscriptions:
            subscription.maintain(selector, self.channel)
        connecting = any(one.is_connecting for one in self._subscriptions)
        for key, _ in selector.select(_POLL_EVERY if connecting else _SELECT_FOR):
            subscription = key.data
            for message in subscription.receive():
                self._handle(subscription, message)

    def _handle(self, subscription: _Subscription, message: Any) -> None:
        if isinstance(message, ErrorReply):
            subscription.refuse(str(message))
        elif message[0] == b"subscribe":
            subscription.accept()
            for ref in self._waiters.valuerefs():  # a copy: waiters come and go
                if waiter := ref():
                    waiter.request_look()
        elif message[0] == b"message":
            name, _, ms = message[2].decode(errors="replace").partition(" ")
            woken = self._waiters.get(name)
            if woken is not None and ms.isdecimal():
                woken.wake(subscription.index, self._clock.monotonic() + int(ms) / _MS)


class _Subscription:
    """The subscription on one node.

    One that is refused is asked for again: an operator may allow it.
    """

    def __init__(
        self, index: int, address: NodeAddress, clock: Clock, timeout: float
    ) -> None:
        self.index = index
        self.listens = False
        self._label = address.name
        self._clock = clock
        self._again_at = math.inf
        self._connector = Connector(address, clock=clock, timeout=timeout)
        self._connection: Connection | StoreConnection | None = None
        self._selector: selectors.BaseSelector | None = None
        self._refused = False

    @property
    def is_connecting(self) -> bool:
        return self._connection is None and self._connector.is_hopeful

    def forget_parent(self) -> None:
        """Start anew in a forked child: the connection is the parent's."""
        connection, self._connection = self._connection, None
        self.listens = False
        self._connector.forget_parent()
        if connection:
            connection.disown()

    def maintain(self, selector: selectors.BaseSelector, channel: str) -> None:
        """Take a new connection, or begin to make one; ask again after a refusal."""
        if self._connection:
            if self._clock.monotonic() >= self._again_at:
                self._again_at = math.inf
                try:
                    self._connection.subscribe(channel)
                except ConnectionLost:
                    self.drop()
            return
        made = self._connector.take()
        if made is not None and not isinstance(made, str):
            self._connector.accept(usable=True)
            try:
                made.subscribe(channel)
            except ConnectionLost:
                made.close()
                return
            self._selector, self._connection = selector, made
            self._again_at = math.inf
            selector.register(made.sock, selectors.EVENT_READ, self)
        self._connector.begin()

    def receive(self) -> list[Any]:
        """Return the messages that have come."""
        messages: list[Any] = []
        try:
            if self._connection:
                messages.extend(self._connection.replies())
        except ConnectionLost:
            self.drop()
        return messages

    def accept(self) -> None:
        """Note that the node has accepted the subscription."""
        self.listens, self._refused = True, False

    def refuse(self, reason: str) -> None:
        """Note that the node refuses the subscription; log it once."""
        self._again_at = self._clock.monotonic() + _ASK_AGAIN
        if not self._refused:
            self._refused = True
            log.warning(
                "The subscription to node %s failed: %s. Calls that wait for a lock "
                "poll the nodes instead.",
                self._label,
                reason,
                extra=log_fields("node-unheard", node=self._label, reason=reason),
            )

    def close(self) -> None:
        """Close the connection, and an attempt to make one."""
        self._connector.abandon()
        self.drop()

    def drop(self) -> None:
        """Close the connection. The next step begins to make another one."""
        connection, self._connection = self._connection, None
        self.listens = False
        if connection:
            with contextlib.suppress(KeyError, ValueError, RuntimeError):
                if self._selector:
                    self._selector.unregister(connection.sock)
            connection.close()
