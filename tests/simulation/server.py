"""A node on the simulated network: a `MemoryNode` that can crash, hang and forget."""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.locks.lease import Holder
from celery_redlock.members.view import CLOSED
from celery_redlock.scripts import ALL_SCRIPTS, EXTEND, GRANTED, INITIALIZE, JOIN
from celery_redlock.scripts.keys import Keys
from celery_redlock.testing import MemoryNode
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from celery_redlock.members.view import View
    from celery_redlock.scripts import Script
    from tests.simulation.network import Connection
    from tests.simulation.oracles import Oracle
    from tests.simulation.world import World

_META = Keys("redlock").meta.encode()
_BY_SHA = {script.sha.encode(): script for script in ALL_SCRIPTS}
_BY_SOURCE = {script.source.encode(): script for script in ALL_SCRIPTS}
_NOSCRIPT = ErrorReply("NOSCRIPT No matching script. Please use EVAL.")
_LOADING = ErrorReply("LOADING Redis is loading the dataset in memory")


class ServerClock:
    """The wall clock of a node. Ttls follow it as well, as in Redis."""

    __slots__ = ("rate", "skew", "world")

    def __init__(self, world: World, *, rate: float, skew: float) -> None:
        self.world = world
        self.rate = rate
        self.skew = skew

    def monotonic(self) -> float:
        """Return seconds since 1970, which a step of the clock changes."""
        return EPOCH + self.skew + self.rate * self.world.now

    def wall(self) -> float:
        """Return seconds since 1970."""
        return self.monotonic()


class Server:
    """One node.

    Attributes:
        place: The name under which it can be a member.
        node: Its keys and scripts.
        starts: The number of its starts. A connection belongs to one start.
        is_up: Whether the process runs. A process that hangs is up.
        is_unreachable: Whether the machine is off: nothing refuses a connection.
        hung_until: It accepts connections and answers nothing until this instant.
        loading_until: It answers everything with an error until this instant.
    """

    starts = 0

    def __init__(
        self, world: World, oracle: Oracle, name: str, clock: ServerClock
    ) -> None:
        self.world = world
        self.oracle = oracle
        self.name = name
        self.place = name.removesuffix("b")
        self.clock = clock
        self.node = MemoryNode(
            clock, new_replid=self._next_replid, publish=self._publish
        )
        self.is_up = True
        self.is_unreachable = False
        self.hung_until = 0.0
        self.loading_until = 0.0
        self._loaded_scripts: set[str] = set()
        self._unread: list[tuple[Connection, bytes]] = []
        self._subscribers: dict[bytes, list[Connection]] = {}
        self._snapshot: dict[bytes, Any] = {}

    def _next_replid(self) -> str:
        self.starts += 1
        return hashlib.sha1(
            f"{self.name} {self.starts}".encode(), usedforsecurity=False
        ).hexdigest()

    # -- commands --------------------------------------------------------------

    def receive(self, connection: Connection, data: bytes) -> None:
        """Execute the commands in bytes that have arrived, unless it hangs."""
        now = self.world.now
        if now > connection.lost_to_server:
            return
        if now < self.hung_until:
            if not self._unread:
                self.world.schedule(self.hung_until, self._resume)
            self._unread.append((connection, data))
            return
        if connection.start != self.starts or not self.is_up:
            if self.is_up or not self.is_unreachable:
                arrives_at = now + connection.path.delay()
                self.world.schedule(arrives_at, connection.refuse)
            return
        reader = connection.reader
        reader.feed(data)
        while (command := reader.gets()) is not False:
            connection.reply(_encode(self._execute(connection, command)))

    def _resume(self) -> None:
        if self.world.now < self.hung_until:
            self.world.schedule(self.hung_until, self._resume)
            return
        unread, self._unread = self._unread, []
        for connection, data in unread:
            self.receive(connection, data)

    def _execute(self, connection: Connection, command: list[bytes]) -> Any:
        if command[0] == b"SUBSCRIBE":  # also while it is loading
            self.oracle.count("subscribed")
            self._subscribers.setdefault(command[1], []).append(connection)
            return [b"subscribe", command[1], 1]
        if self.world.now < self.loading_until:
            self.oracle.count("loading")
            return _LOADING
        if command[0] in (b"HMGET", b"TIME", b"SCAN"):
            return self._look(*command)
        if command[0] == b"EVALSHA":
            script = _BY_SHA[command[1]]
            if script.name not in self._loaded_scripts:
                self.oracle.count("script unknown")
                return _NOSCRIPT
        else:
            script = _BY_SOURCE[command[1]]
            self._loaded_scripts.add(script.name)
            self.oracle.count("script loaded")
        first = 3 + int(command[2])
        keys, args = command[3:first], command[first:]
        reply = self.node.execute(script, keys, args)
        calls = _calls_in(script, keys, args)
        if calls[1:]:
            self.oracle.count("renewed together")
        for its_keys, its_args in calls:
            self.oracle.executed(self, connection, script, its_keys, its_args, reply)
        return reply

    def _look(self, command: bytes, name: bytes = b"", *args: bytes) -> Any:
        """Execute a command of an operator, who looks at the node."""
        redis = self.node.redis
        redis.look_at_clock()
        if command == b"HMGET":
            return [redis.hgetall(name).get(field) for field in args]
        if command == b"TIME":
            return [b"%d" % part for part in divmod(redis.now_us(), 1_000_000)]
        prefix = args[1].removesuffix(b"*")  # of SCAN 0 MATCH lock:* COUNT n
        names = redis.keys()
        return [b"0", [name for name in names if name.startswith(prefix)]]

    def _publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to the subscribers, also to those that were powered off."""
        now, subscribers = self.world.now, self._subscribers.get(channel, ())
        subscribers = [each for each in subscribers if now < each.ended_at]
        for connection in subscribers:
            arrives = connection.reply(_encode([b"message", channel, message]))
            self.oracle.count("wake-up sent" if arrives else "wake-up lost")
            self.world.log(self.name, f"wakes {connection.path.process.name}")
        if not subscribers:
            self.oracle.count("wake-up without a subscriber")
        return len(subscribers)

    # -- faults ----------------------------------------------------------------

    def join(self) -> str:
        """Give it an identity."""
        random = f"{self.world.rng.getrandbits(32):08x}"
        reply = self.node.execute(JOIN, [_META], [random, ""])
        return str(reply[3].decode())

    def initialize(self, view: View) -> None:
        """Let it vote from the start."""
        now_us = round(self.clock.wall() * 1e6)
        reply = self.node.execute(INITIALIZE, [_META], [str(view), now_us, 0])
        assert reply[0] == GRANTED, f"{self.name} does not vote: {reply}"
        self._loaded_scripts.update(script.name for script in ALL_SCRIPTS)
        self.oracle.synced(self, with_floor=False)

    def crash(self, *, silently: bool) -> None:
        """End the process, and lose the bytes that it has not read."""
        if not self.is_up:
            return
        self.world.log(self.name, "crashes")
        self.is_up = False
        self.is_unreachable = silently
        self.hung_until = 0.0  # so that later bytes do not wait for the end of the hang
        self._unread.clear()
        self._subscribers.clear()
        for path in self.oracle.network.paths_to(self.name):
            for connection in path.connections:
                after = path.rng.random() * path.conditions.longest
                connection.break_(after, silently=silently)

    def restart(self, memory: str, *, loading: float = 0.0) -> None:
        """Start the process again.

        Args:
            memory: ``"keep"`` all keys, ``"lose"`` all, or ``"rollback"`` to the last
                snapshot.
            loading: Seconds for which it answers with errors.
        """
        if self.is_up:
            return
        self.world.log(self.name, f"starts again (memory: {memory})")
        self.is_up, self.is_unreachable, self.hung_until = True, False, 0.0
        self.loading_until = self.world.now + loading
        self._loaded_scripts.clear()
        self.node.restart(keep_memory=memory != "lose")
        if memory == "rollback":
            self._entries = _copied(self._snapshot)
        self.oracle.memory_lost(self)

    @property
    def config(self) -> str:
        """The fields that it has stored about its membership."""
        return (self.node.redis.hgetall(_META).get(b"config") or b"").decode()

    @property
    def votes(self) -> bool:
        """Whether it votes for clients with its view in this process."""
        redis = self.node.redis
        is_same = redis.hgetall(_META).get(b"replid") == redis.replid
        return is_same and redis.hgetall(_META).get(b"votes") is not None

    @property
    def is_closed(self) -> bool:
        """Whether a reconfiguration has closed it."""
        return self.config.startswith(CLOSED)

    def forget_membership(self) -> None:
        """Delete what it knows of itself, and keep all locks (DEL redlock:meta)."""
        if self.is_up:
            self.world.log(self.name, "loses its membership")
            self.node.redis.delete(_META)
            self.oracle.memory_lost(self)

    def flush(self) -> None:
        """Delete all keys (FLUSHALL)."""
        if self.is_up:
            self.world.log(self.name, "is flushed")
            self.node.flush()
            self.oracle.memory_lost(self)

    def come_back(self) -> None:
        """Get the snapshot back, as the same process, after a time as a replica."""
        if self.is_up:
            self.world.log(self.name, "gets an old memory back")
            self._entries = _copied(self._snapshot)
            self.node.promote()
            self.oracle.memory_lost(self)

    def may_evict(self) -> None:
        """Be set to evict keys."""
        if self.is_up:
            self.world.log(self.name, "may evict locks from now on")
            self.node.redis.evicts = b"volatile-lru"

    def evict(self) -> None:
        """Evict all keys that have a ttl, and be set to evict nothing more."""
        self.node.redis.evicts = b""
        if self.is_up:
            self.world.log(self.name, "evicts its locks")
            redis = self.node.redis
            redis.look_at_clock()
            alive = redis.keys()
            gone = [name for name in alive if redis.pttl(name) >= 0]
            for name in gone:
                redis.evict(name)
            if gone:  # else the node has lost nothing, and keeps its vote
                self.oracle.memory_lost(self)

    def forget_scripts(self) -> None:
        """Remove all scripts (SCRIPT FLUSH)."""
        self.world.log(self.name, "forgets its scripts")
        self._loaded_scripts.clear()

    def hang(self, seconds: float) -> None:
        """Answer nothing for a while (SIGSTOP, a slow command, swapping)."""
        if self.is_up:
            self.world.log(self.name, f"hangs for {seconds:.3f} s")
            self.hung_until = max(self.hung_until, self.world.now + seconds)

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock."""
        self.world.log(self.name, f"sets its clock by {seconds:+.3f} s")
        self.clock.skew += seconds
        self.oracle.clock_stepped(self, seconds)

    def take_snapshot(self) -> None:
        """Save the state that a rollback restores."""
        if self.is_up:
            self._snapshot = _copied(self._entries)

    def locks(self) -> list[bytes]:
        """Return the names of the lock keys that have not expired."""
        redis = self.node.redis
        redis.look_at_clock()
        names = [name for name in self._entries if b":lock:" in name]
        return [name for name in names if redis.get(name)]

    def holders(self) -> dict[Holder, set[str]]:
        """Return each holder of several keys with those that the node has for it."""
        found: dict[Holder, set[str]] = {}
        for name in self.locks():
            value = self.node.redis.get(name) or b""
            holder = Holder.parse(value.decode(errors="replace"))
            key = name.decode().rpartition(":")[2]
            found.setdefault(replace(holder, fence=0), set()).add(key)
        return found

    def has(self, token: str) -> bool:
        """Tell whether it has a lock of this token."""
        return any(holder.token == token for holder in self.holders())

    @property
    def _entries(self) -> dict[bytes, Any]:
        return self.node.redis._entries  # noqa: SLF001  (a snapshot has no API)

    @_entries.setter
    def _entries(self, entries: dict[bytes, Any]) -> None:
        self.node.redis._entries = entries  # noqa: SLF001


def _calls_in(
    script: Script, keys: list[bytes], args: list[bytes]
) -> list[tuple[list[bytes], list[bytes]]]:
    """Return KEYS and ARGV of a script; of EXTEND, as it would be for each lease."""
    if script is not EXTEND:
        return [(keys, args)]
    *locks, meta, releases = keys
    view, *owners = args
    found: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    for lock, token, ttl_ms in zip(locks, owners[::2], owners[1::2], strict=True):
        its_keys, its_args = found.setdefault(token, ([], [view]))
        its_keys.append(lock)
        its_args += [token, ttl_ms]
    return [([*its_keys, meta, releases], args) for its_keys, args in found.values()]


def _copied(entries: dict[bytes, Any]) -> dict[bytes, Any]:
    return {
        name: replace(entry, value=copy(entry.value)) for name, entry in entries.items()
    }


def _encode(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, ErrorReply):
        return b"-%b\r\n" % str(reply).encode()
    return b"*%d\r\n" % len(reply) + b"".join([_encode(item) for item in reply])
