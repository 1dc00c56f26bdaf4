"""A node on the simulated network: a `MemoryNode` that can crash, hang and forget."""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import ALL_SCRIPTS
from celery_redlock.core.wire import ErrorReply
from celery_redlock.testing.nodes import MemoryNode
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from tests.simulation.connection import Connection
    from tests.simulation.witness import Witness
    from tests.simulation.world import World

__all__ = ["Server", "ServerClock"]

_BY_SHA = {script.sha.encode(): script for script in ALL_SCRIPTS}
_BY_SOURCE = {script.source.encode(): script for script in ALL_SCRIPTS}
_NOSCRIPT = ErrorReply("NOSCRIPT No matching script. Please use EVAL.")
_LOADING = ErrorReply("LOADING Redis is loading the dataset in memory")


class ServerClock:
    """A node's wall clock, by which it also counts ttls, as Redis does."""

    __slots__ = ("rate", "skew", "world")

    def __init__(self, world: World, *, rate: float, skew: float) -> None:
        self.world = world
        self.rate = rate
        self.skew = skew

    def monotonic(self) -> float:
        """Seconds since 1970, which a step of the clock changes."""
        return EPOCH + self.skew + self.rate * self.world.now

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        return round(self.monotonic() * 1_000_000)


class Server:
    """One node.

    Attributes:
        node: What it is made of.
        epoch: How often it was started; connections belong to one start.
        is_up: Whether the process runs; it may be hung all the same.
        gone_silently: The machine is off: nobody even refuses a connection.
        hung_until: Until then it accepts connections and answers nothing.
        loading_until: Until then it answers everything with an error.
    """

    def __init__(
        self,
        world: World,
        witness: Witness,
        name: str,
        clock: ServerClock,
    ) -> None:
        self.world = world
        self.witness = witness
        self.name = name
        self.clock = clock
        self.node = MemoryNode(
            clock, new_run_id=self._next_run_id, publish=self._publish
        )
        self.is_up = True
        self.gone_silently = False
        self.hung_until = 0.0
        self.loading_until = 0.0
        self._knows: set[str] = set()  # scripts, by name
        self._waiting: list[tuple[Connection, bytes]] = []
        self._subscribed: dict[bytes, list[Connection]] = {}
        self._snapshot: dict[bytes, Any] = {}
        witness.lost_memory(self)

    epoch = 0

    def _next_run_id(self) -> str:
        self.epoch += 1
        return hashlib.sha1(
            f"{self.name} {self.epoch}".encode(), usedforsecurity=False
        ).hexdigest()

    # -- the network -----------------------------------------------------------

    def take_in(self, connection: Connection, data: bytes) -> None:
        """Take bytes that have arrived."""
        now = self.world.now
        if now > connection.lost_to_server:
            return
        if now < self.hung_until:
            if not self._waiting:
                self.world.at(self.hung_until, self._wake_up)
            self._waiting.append((connection, data))
            return
        if connection.epoch != self.epoch or not self.is_up:
            if self.is_up or not self.gone_silently:
                self.world.at(now + connection.path.delay(), connection.refuse)
            return
        reader = connection.reader
        reader.feed(data)
        while (command := reader.gets()) is not False:
            connection.reply(_encode(self._run(connection, command)))

    def _wake_up(self) -> None:
        if self.world.now < self.hung_until:
            self.world.at(self.hung_until, self._wake_up)
            return
        waiting, self._waiting = self._waiting, []
        for connection, data in waiting:
            self.take_in(connection, data)

    def _subscribe(self, connection: Connection, channel: bytes) -> Any:
        self.witness.count("subscribed")
        self._subscribed.setdefault(channel, []).append(connection)
        return [b"subscribe", channel, 1]

    def _publish(self, channel: bytes, message: bytes) -> int:
        """Tell who has subscribed. Whoever is gone without a word is told in vain."""
        now, listeners = self.world.now, self._subscribed.get(channel, ())
        listeners = [each for each in listeners if now < each.ended_at]
        for connection in listeners:
            arrives = connection.reply(_encode([b"message", channel, message]))
            self.witness.count("woken in line" if arrives else "wake-up lost")
            self.world.note(self.name, f"wakes {connection.path.process.name}")
        if not listeners:
            self.witness.count("wake-up passed over")
        return len(listeners)

    def _run(self, connection: Connection, command: list[bytes]) -> Any:
        if command[0] == b"SUBSCRIBE":  # also while it is loading
            return self._subscribe(connection, command[1])
        if self.world.now < self.loading_until:
            self.witness.count("loading")
            return _LOADING
        if command[0] == b"SCRIPT":  # LOAD
            script = _BY_SOURCE[command[2]]
            self._knows.add(script.name)
            self.witness.count("script taught")
            return script.sha.encode()
        if command[0] == b"EVALSHA":
            script = _BY_SHA[command[1]]
            if script.name not in self._knows:
                self.witness.count("script forgotten")
                return _NOSCRIPT
        else:
            script = _BY_SOURCE[command[1]]
            self._knows.add(script.name)
        first = 3 + int(command[2])
        keys, args = command[3:first], command[first:]
        reply = self.node.run(script, keys, args)
        self.witness.executed(self, connection, script, keys, args, reply)
        if self.witness.handovers is not None:
            self.witness.handovers.executed(self, script.name, keys, args, reply)
        return reply

    # -- what happens to it ------------------------------------------------------

    def initialize(self, keys: list[str], config: str) -> None:
        """Let it vote from the start."""
        self.node.redis.look_at_clock()
        self.node.initialize([key.encode() for key in keys], [config.encode()])
        self._knows.update(script.name for script in ALL_SCRIPTS)
        self.witness.synced(self, with_floor=False)

    def crash(self, *, silently: bool) -> None:
        """End the process; what had arrived and was not read is lost."""
        if not self.is_up:
            return
        self.world.note(self.name, "crashes")
        self.is_up = False
        self.gone_silently = silently
        self.hung_until = 0.0  # else what comes next would wait for its end
        self._waiting.clear()
        self._subscribed.clear()
        for path in self.witness.network.paths_to(self.name):
            for connection in path.connections:
                connection.break_(
                    path.rng.random() * path.weather.longest, told=not silently
                )

    def restart(self, memory: str, *, loading: float = 0.0) -> None:
        """Start it again.

        Args:
            memory: ``"keep"`` all, ``"lose"`` all, or ``"rollback"`` to the last
                snapshot.
            loading: Seconds for which it answers with errors.
        """
        if self.is_up:
            return
        self.world.note(self.name, f"starts again (memory: {memory})")
        self.is_up, self.gone_silently, self.hung_until = True, False, 0.0
        self.loading_until = self.world.now + loading
        self._knows.clear()
        self.node.restart(keep_memory=memory != "lose")
        if memory == "rollback":
            self._entries = _copied(self._snapshot)
        self.witness.lost_memory(self)

    def flush(self) -> None:
        """Forget all keys (FLUSHALL)."""
        if self.is_up:
            self.world.note(self.name, "is flushed")
            self.node.flush()
            self.witness.lost_memory(self)

    def forget_scripts(self) -> None:
        """Forget all scripts (SCRIPT FLUSH)."""
        self.world.note(self.name, "forgets its scripts")
        self._knows.clear()

    def hang(self, seconds: float) -> None:
        """Answer nothing for so long (SIGSTOP, a slow command, swapping)."""
        if self.is_up:
            self.world.note(self.name, f"hangs for {seconds:.3f} s")
            self.hung_until = max(self.hung_until, self.world.now + seconds)

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock."""
        self.world.note(self.name, f"steps its clock by {seconds:+.3f} s")
        self.clock.skew += seconds
        self.witness.stepped(self, seconds)

    def take_snapshot(self) -> None:
        """Save what a rollback goes back to."""
        if self.is_up:
            self._snapshot = _copied(self._entries)

    @property
    def _entries(self) -> dict[bytes, Any]:
        return self.node.redis._entries  # noqa: SLF001  (a snapshot has no API)

    @_entries.setter
    def _entries(self, entries: dict[bytes, Any]) -> None:
        self.node.redis._entries = entries  # noqa: SLF001

    def locks(self) -> list[bytes]:
        """Return the names of the lock keys that are alive."""
        redis = self.node.redis
        redis.look_at_clock()
        return [
            name
            for name in list(self._entries)
            if b":lock:" in name and redis.get(name)
        ]


def _copied(entries: dict[bytes, Any]) -> dict[bytes, Any]:
    return {
        name: replace(entry, value=entry.value)
        if isinstance(entry.value, bytes)
        else replace(entry, value=copy(entry.value))
        for name, entry in entries.items()
    }


def _encode(reply: Any) -> bytes:
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, ErrorReply):
        return b"-%b\r\n" % str(reply).encode()
    return b"*%d\r\n" % len(reply) + b"".join([_encode(item) for item in reply])
