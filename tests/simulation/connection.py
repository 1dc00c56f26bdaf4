"""Connections that delay, break and forget, as bytes between the core and a node.

A connection keeps its order, as TCP does. Messages of different connections
overtake each other; one that the client gave up may still deliver what was on
its way, long after a newer connection was made.
"""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.core.wire import new_reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.network import Key, Selector
    from tests.simulation.server import Server
    from tests.simulation.world import Process, World

__all__ = ["Connection", "Path", "Weather"]

_NEVER = float("inf")
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Path:
    """The way between one client and one node, which all their connections take.

    Attributes:
        cut_until: Nothing gets through before this instant; it waits.
        slow_until: Until then ``slowness`` seconds are added to each message.
        stutter: The part of the sends that takes only some of the bytes.
        ambushes: Called with a connection and the bytes that it is to send.
    """

    __slots__ = (
        "ambushes",
        "connections",
        "cut_until",
        "process",
        "rng",
        "server",
        "slow_until",
        "slowness",
        "stutter",
        "weather",
        "world",
    )

    def __init__(
        self, process: Process, server: Server, rng: Random, weather: Weather
    ) -> None:
        self.world = process.world
        self.process = process
        self.server = server
        self.rng = rng
        self.weather = weather
        self.stutter = weather.stutter
        self.ambushes: list[Callable[[Connection, bytes], None]] = []
        self.cut_until = 0.0
        self.slow_until = 0.0
        self.slowness = 0.0
        self.connections: list[Connection] = []

    def delay(self) -> float:
        """Return the seconds that one message takes, one way."""
        random = self.rng.random
        shortest, longest, spikes, spike, _ = self.weather
        seconds = shortest + (longest - shortest) * random()
        now = self.world.now
        if spikes and random() < spikes:
            seconds += spike * random()
        if now < self.slow_until:
            seconds += self.slowness * random()
        if now < self.cut_until:
            seconds += self.cut_until - now
        return seconds

    def blocked_for(self) -> float:
        """Return the seconds for which nothing gets through; 0 or less if it does."""
        server = self.server
        if server.gone_silently:
            return _NEVER
        return max(self.cut_until, server.hung_until) - self.world.now

    def reset(self) -> None:
        """Break its connections; the end of what was on its way is lost."""
        for connection in self.connections:
            connection.break_(self.rng.random() * self.weather.longest, told=True)


class Weather(NamedTuple):
    """How a network behaves when nothing special happens to it.

    Attributes:
        shortest: Seconds that a message takes at least.
        longest: Seconds that it takes, but for spikes.
        spikes: The part of the messages that take longer.
        spike: Seconds that those take longer at most.
        stutter: The part of the sends that takes only some of the bytes.
    """

    shortest: float
    longest: float
    spikes: float = 0.0
    spike: float = 0.0
    stutter: float = 0.0


class Connection:
    """One TCP connection; the client's end looks like a non-blocking socket."""

    __slots__ = (
        "_rest_writable_at",
        "_to_client_at",
        "_to_server_at",
        "ended_at",
        "epoch",
        "error",
        "events",
        "inbox",
        "is_open",
        "key",
        "lost_from_server",
        "lost_to_server",
        "path",
        "reader",
        "selector",
        "server",
        "unread",
        "world",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.world: World = path.world
        self.server = path.server
        self.epoch = path.server.epoch
        self.is_open = True
        self.ended_at = _NEVER  # when the node hears of its end
        self.error = ""
        self.selector: Selector | None = None
        self.key: Key | None = None
        self.events = 0
        self.reader = new_reader()  # the node's end
        self.unread = False
        self.lost_to_server = _NEVER
        self.lost_from_server = _NEVER
        self.inbox = bytearray()
        self._to_server_at = 0.0
        self._to_client_at = 0.0
        self._rest_writable_at = 0.0
        path.connections.append(self)

    # -- the client's end, as a socket -----------------------------------------

    def send(self, data: bytes | bytearray) -> int:
        """Send what fits."""
        path = self.path
        path.process.operate()
        if path.ambushes:
            for ambush in tuple(path.ambushes):
                ambush(self, bytes(data))
        now = self.world.now
        if self.error:
            raise ConnectionResetError(self.error)
        if now < self._rest_writable_at:
            raise BlockingIOError
        size = len(data)
        if path.stutter and path.rng.random() < path.stutter:
            size = path.rng.randrange(size)
            self._rest_writable_at = now + path.delay()
            self.world.at(self._rest_writable_at, self._notify)
            self.server.witness.count("partial send")
        taken = bytes(data[:size]) if size < len(data) else bytes(data)
        if taken:
            self._to_server_at = max(self._to_server_at, now + path.delay())
            self.world.at(self._to_server_at, self.server.take_in, self, taken)
        return size

    def recv(self, size: int) -> bytes:
        """Return what has come."""
        self.path.process.operate()
        if self.inbox:
            data = bytes(self.inbox[:size])
            del self.inbox[:size]
            return data
        if self.error:
            raise ConnectionResetError(self.error)
        raise BlockingIOError

    def ready(self) -> int:
        """Return for which of the events that are waited for it is ready."""
        ready = _READ if self.inbox or self.error else 0
        if self.events & _WRITE and self.world.now >= self._rest_writable_at:
            ready |= _WRITE
        return ready & self.events

    def close(self) -> None:
        """Close the client's end. What was sent is still delivered, unless lost."""
        self.is_open = False
        self.inbox.clear()
        self._ends_at(
            max(self._to_server_at, self.world.now + self.path.weather.longest)
        )
        if self in self.path.connections:
            self.path.connections.remove(self)

    # -- what happens to it ------------------------------------------------------

    def reply(self, data: bytes) -> bool:
        """Send from the node. Return False if it is known to be in vain."""
        path = self.path
        self._to_client_at = max(self._to_client_at, self.world.now + path.delay())
        if self._to_client_at <= self.lost_from_server:
            self.world.at(self._to_client_at, self._take_in, data)
            return self.is_open and not self.error
        return False

    def break_(self, after: float, *, told: bool) -> None:
        """Lose what would arrive later than in ``after`` seconds; say so or not."""
        end = self.world.now + after
        self.lost_to_server = min(self.lost_to_server, end)
        self.lost_from_server = min(self.lost_from_server, end)
        if told:
            self._ends_at(end)
            self.world.at(max(end, self._to_client_at), self.refuse)

    def refuse(self) -> None:
        """Tell the client that the node knows nothing of this connection."""
        if self.is_open and not self.error:
            self.error = "Connection reset by peer"
            self._notify()

    def _ends_at(self, instant: float) -> None:
        if instant <= self.lost_to_server:
            self.ended_at = min(self.ended_at, instant)

    def _take_in(self, data: bytes) -> None:
        if self.is_open and not self.error and self.world.now <= self.lost_from_server:
            self.inbox += data
            self._notify()

    def _notify(self) -> None:
        if self.selector is not None:
            self.selector.notify()
