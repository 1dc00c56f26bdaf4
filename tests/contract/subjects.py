"""The nodes that run the scripts: one in memory, or a real server.

A `Subject` is one node with the keys of one test. Both kinds have the same methods:
a test does not know on which one it runs.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock import scripts
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply, new_reader, pack
from celery_redlock.members.view import CLOSED as PREFIX
from celery_redlock.scripts import ALL_SCRIPTS, GRANTED
from celery_redlock.scripts.keyspace import WrongType
from celery_redlock.stores.needs import Needs
from celery_redlock.testing import FakeClock, MemoryNode
from celery_redlock.wire.url import parse_node
from tests.harness.store_nodes import Front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from celery_redlock.basics.clock import Clock
    from celery_redlock.devnodes import DevNode
    from celery_redlock.scripts import Script

TOKEN, OTHER = "base-a.try-1", "base-b.try-1"
HOLDER_INFO = "task\nid\nhost\n1\n2.000"
ME = "{me}"  # replaced by the identity of the node, in the views of tests


def view(  # noqa: PLR0913  (each has the value that most tests want)
    me: str = f"0.{ME}",
    b: str = "0.b1",
    c: str = "0.c1",
    *,
    deployment: str = "d1",
    epoch: str = "1.aa",
    kind: str = "founded",
    guard: str = "on",
) -> str:
    """Return the text of a view of three nodes; the node of the test is the first."""
    return (
        f"format 4, max_ttl 60 s, restart guard {guard}, deployment {deployment}, "
        f"epoch {epoch} {kind}, nodes a:1/0={me}, b:1/0={b}, c:1/0={c}"
    )


CONFIG = view()
UNGUARDED = view(deployment="d2", guard="off")
STRANGE = view(deployment="d3")  # a third view, of another deployment
NEW = view(epoch="2.bb", kind="planned")
CLOSED = f"{PREFIX}{NEW}"  # what a node has stored that is closed for NEW
STRIPE = "7"
MAX_TTL = 60_000  # ms, of the views
TTL = 20_000  # ms; no test takes this long
PATIENCE = 10_000  # ms that a test may take on a busy machine
SHORT = 30  # ms, for what has to expire
NO_KEY, NO_TTL = -2, -1  # replies of PTTL
EXACT = 2**53  # above it a double cannot tell n from n + 1
TOLERANCE = 15_000_000  # µs
SOON = 10.0  # seconds


def value(number: int, token: str = TOKEN, holder_info: str = HOLDER_INFO) -> bytes:
    """Return the expected value of a lock."""
    return f"{token}\n{number}\n{holder_info}".encode()


class Subject(ABC):
    """One node, the keys of one test, and the scripts with their arguments.

    Attributes:
        keys: The keys of the node, with the methods of a ``MemoryKeyspace``.
        clock: The clock by which the node's keys expire.
    """

    keys: Any
    clock: Clock

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(8)
        self.lock = self.key("lock:a")
        self.wait_queue = self.key("line:a")
        self.locks, self.wait_queues = [self.lock], [self.wait_queue]
        self.meta = self.key("meta")
        self.releases = self.key("releases")

    def key(self, name: str) -> str:
        """Return a key under the prefix of this test."""
        return f"{self.prefix}:{name}"

    def longest(self, ttl_ms: int) -> int:
        """Return the most of a ttl that the node may ever tell to be left, in ms."""
        return ttl_ms

    def take_several(self, *names: str) -> None:
        """Use the locks of these keys from now on, all together."""
        self.locks = [self.key(f"lock:{name}") for name in names]
        self.wait_queues = [self.key(f"line:{name}") for name in names]

    @property
    def pairs(self) -> list[str]:
        """The locks, then their wait queues."""
        return [*self.locks, *self.wait_queues]

    def run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply. `ME` is replaced in its ARGV.

        Redis sends no fractions, so no reply has one.
        """
        identity = self.identity
        args = [a.replace(ME, identity) if isinstance(a, str) else a for a in args]
        reply = self.execute(script, keys, args)
        items = reply if isinstance(reply, list) else [reply]
        assert not any(isinstance(item, float) for item in items), reply
        return reply

    @abstractmethod
    def execute(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""

    @abstractmethod
    def restart(self, *, keep_memory: bool) -> None:
        """Become another server process."""

    @abstractmethod
    def promote(self) -> None:
        """Become a replica, and a master again."""

    @abstractmethod
    def may_evict(self, policy: str) -> None:
        """Set the policy, with a limit of memory that is far away."""

    @abstractmethod
    def evict(self, key: str) -> None:
        """Delete the key, which has a ttl, as a node does that is full."""

    def look_again(self) -> None:
        """Let the next script look at what the node evicts."""
        self.hdel(self.meta, "looked")

    @property
    def replid(self) -> bytes:
        """The name of its memory."""
        replid: bytes = self.keys.replid
        return replid

    @property
    def identity(self) -> str:
        """The identity of the node; "none" while it has none."""
        with suppress(WrongType):
            return self.hgetall(self.meta).get(b"identity", b"none").decode()
        return "none"

    def text(self, config: str) -> bytes:
        """Return a view of the tests, as the node has it stored."""
        return config.replace(ME, self.identity).encode()

    @property
    def is_quarantined(self) -> bool:
        """Whether the node waits for the end of a quarantine."""
        until = int(self.hgetall(self.meta).get(b"quarantine_until", 0))
        return until * 1000 > self.now_us

    def admit(self, config: str = CONFIG) -> str:
        """Let the node vote, unless it has a view; return the view that it has.

        The fence counters stay as they are, and are not raised above TIME.
        """
        known = self.hgetall(self.meta).get(b"config")
        if known is not None:
            return known.decode()
        floor = self.counter("floor")
        self.join()
        if self.initialize(config) != [GRANTED, 0]:  # as one that replaces a member
            self.note(config)
            self.end_quarantine()
            assert self.sync(config=config) == [GRANTED, 0]
        if floor is None:
            self.hdel(self.meta, "floor")
        else:
            self.hset(self.meta, "floor", floor)
        return config

    def enter(self, config: str = CONFIG, quarantine_ms: int = 61_000) -> None:
        """Let the node enter a view, in which it does not vote yet."""
        self.join()
        assert self.note(config, quarantine_ms) == [GRANTED, 0]

    def end_quarantine(self) -> None:
        """End the quarantine of the node, as time does."""
        self.hset(self.meta, "quarantine_until", 1)

    @property
    def now_us(self) -> int:
        """The node's TIME."""
        now_us: int = self.keys.now_us()
        return now_us

    def flush(self) -> None:
        """Delete all keys of the node (FLUSHALL)."""
        self.keys.clear()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until this is true."""
        deadline = self.clock.monotonic() + SOON
        while not condition():
            assert self.clock.monotonic() < deadline
            self.clock.sleep(0.001)

    # -- its keys --------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Read a string."""
        self.keys.look_at_clock()
        found: bytes | None = self.keys.get(key.encode())
        return found

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        """Read a hash, without the instant that only a server stores."""
        self.keys.look_at_clock()
        fields = dict(self.keys.hgetall(key.encode()))
        fields.pop(b"looked", None)
        return fields

    def read(self, key: str) -> bytes | dict[bytes, bytes] | None:
        """Read a string or a hash."""
        try:
            return self.get(key)
        except WrongType:
            return self.hgetall(key)

    def pttl(self, key: str) -> int:
        """Read a ttl in milliseconds: `NO_TTL`, `NO_KEY`."""
        self.keys.look_at_clock()
        left: int = self.keys.pttl(key.encode())
        return left

    def waiters(self, wait_queue: str = "") -> list[bytes]:
        """Read a wait queue, in its order."""
        self.keys.look_at_clock()
        return list(self.keys.zset((wait_queue or self.wait_queue).encode()))

    def counter(self, field: str = STRIPE) -> bytes | None:
        """Read one fence counter."""
        return self.counters_of_all().get(field.encode())

    def counters_of_all(self) -> dict[bytes, bytes]:
        """Read all fence counters."""
        fields = self.hgetall(self.meta).items()
        return {f: n for f, n in fields if f == b"floor" or f.isdigit()}

    def zadd(self, key: str, member: str, score: float) -> None:
        """Write a member of a sorted set."""
        self.keys.zadd(key.encode(), member.encode(), score)

    def set(self, key: str, value: str | bytes, px: int | None = None) -> None:
        """Write a string."""
        self.keys.look_at_clock()
        data = value if isinstance(value, bytes) else value.encode()
        self.keys.set(key.encode(), data, px=px)

    def hset(self, key: str, field: str, value: Any) -> None:
        """Write a field of a hash."""
        data = value if isinstance(value, bytes) else str(value).encode()
        self.keys.hset(key.encode(), {field.encode(): data})

    def hdel(self, key: str, field: str) -> None:
        """Delete a field of a hash."""
        self.keys.hdel(key.encode(), field.encode())

    def delete(self, key: str) -> None:
        """Delete a key."""
        self.keys.delete(key.encode())

    def everything(self) -> dict[str, Any]:
        """Read all keys under the prefix of this test."""
        names = [self.lock, self.wait_queue, self.meta, self.releases]
        names += [self.key("claim:a"), self.key("cooldown:a")]
        return {name: self.read(name) for name in names if self.pttl(name) != NO_KEY}

    # -- the scripts -----------------------------------------------------------

    def acquire(  # noqa: PLR0913  (each has the value that most tests want)
        self,
        token: str = TOKEN,
        holder_info: str = HOLDER_INFO,
        ttl_ms: int = TTL,
        *,
        stripe: str = STRIPE,
        stripes: Sequence[str] = (),
        hint_us: int = 0,
        tolerance_us: int = TOLERANCE,
        config: str | None = None,
    ) -> Any:
        """Run ACQUIRE; on a node that votes, unless there is a config."""
        config = self.admit() if config is None else config
        stripes = stripes or [stripe] * len(self.locks)
        args = [token, holder_info, ttl_ms, hint_us, tolerance_us, config, *stripes]
        keys = [*self.locks, self.meta]
        return self.run(scripts.ACQUIRE, keys, args)

    def extend(
        self,
        token: str = TOKEN,
        ttl_ms: int = TTL,
        *,
        config: str | None = None,
    ) -> Any:
        """Run EXTEND; on a node that votes, unless there is a config."""
        return self.extend_each(*[(token, ttl_ms)] * len(self.locks), config=config)

    def extend_each(
        self, *tokens_and_ttls: tuple[str, int], config: str | None = None
    ) -> Any:
        """Run EXTEND with a token and a ttl for each lock: see ``extend``."""
        config = self.admit() if config is None else config
        args = [config, *[word for pair in tokens_and_ttls for word in pair]]
        keys = [*self.locks, self.meta, self.releases]
        return self.run(scripts.EXTEND, keys, args)

    def restore(
        self,
        token: str = TOKEN,
        ttl_ms: int = TTL,
        *,
        fence: int | str = 100,
        config: str | None = None,
    ) -> Any:
        """Run RESTORE; on a node that votes, unless there is a config."""
        config = self.admit() if config is None else config
        stripes = [STRIPE] * len(self.locks)
        args = [config, token, HOLDER_INFO, ttl_ms, fence, *stripes]
        return self.run(scripts.RESTORE, [*self.locks, self.meta], args)

    def raise_fence(self, token: str = TOKEN, *, fence: int | str = 100) -> Any:
        """Run RAISE_FENCE."""
        args = [token, HOLDER_INFO, fence, *[STRIPE] * len(self.locks)]
        return self.run(scripts.RAISE_FENCE, [*self.locks, self.meta], args)

    def release(self, token: str = TOKEN, *, keep_ms: int = 0) -> Any:
        """Run RELEASE."""
        return self.run(scripts.RELEASE, self.pairs, [token, keep_ms])

    def claim(self, *, config: str | None = None) -> Any:
        """Run CLAIM for the job 1; on a node that votes, unless there is a config."""
        config = self.admit() if config is None else config
        keys = [self.key("claim:a"), self.lock, self.key("cooldown:a"), self.meta]
        return self.run(
            scripts.CLAIM, keys, [config, "job-1", HOLDER_INFO, TTL, 0, 0, ""]
        )

    def keep_claim(self, *, config: str | None = None) -> Any:
        """Run KEEP_CLAIM for the job 1; on a node that votes, as CLAIM."""
        config = self.admit() if config is None else config
        keys = [self.key("claim:a"), self.meta]
        return self.run(scripts.KEEP_CLAIM, keys, [config, "job-1", 3 * TTL])

    def release_claim(self, job: str = "job-1") -> Any:
        """Run RELEASE_CLAIM."""
        return self.run(scripts.RELEASE_CLAIM, [self.key("claim:a")], [job])

    def read_slots(self, *, config: str) -> Any:
        """Run READ_SLOTS."""
        keys = [self.key("slots:a"), self.meta]
        return self.run(scripts.READ_SLOTS, keys, [config])

    def inspect(self) -> Any:
        """Run INSPECT."""
        return self.run(scripts.INSPECT, self.locks, [])

    def force_release(
        self,
        token: str = TOKEN,
        record: str = "by an operator",
        ttl_ms: int = TTL,
        *,
        name: str | None = None,
        most: int = 3,
    ) -> Any:
        """Run FORCE_RELEASE."""
        keys = [*self.pairs, self.releases]
        args = [token, name or token, record, ttl_ms, most]
        return self.run(scripts.FORCE_RELEASE, keys, args)

    def list_releases(self) -> list[Any]:
        """Run LIST_RELEASES; sort by name."""
        status, *words = self.run(scripts.LIST_RELEASES, [self.releases], [])
        return [status, *sorted(zip(words[::2], words[1::2], strict=True))]

    def request_cancel(self, token: str = TOKEN, who: str = "task[id]") -> Any:
        """Run REQUEST_CANCEL."""
        return self.run(scripts.REQUEST_CANCEL, self.locks[:1], [token, who])

    def join_wait_queue(
        self, waiter: str = "w/1", rank: int = 1, ttl_ms: int = TTL
    ) -> Any:
        """Run JOIN_WAIT_QUEUE."""
        args = [waiter, rank, ttl_ms]
        return self.run(scripts.JOIN_WAIT_QUEUE, self.pairs, args)

    def _limits(self, limits: Sequence[tuple[str, int, int]]) -> list[Any]:
        words: list[Any] = []
        for head, most, ttl_ms in limits:
            words += [self.key(f"lock:{head}"), most, ttl_ms]
        return words

    def acquire_permits(
        self,
        names: Sequence[str],
        limits: Sequence[tuple[str, int, int]],
        token: str = TOKEN,
        *,
        config: str | None = None,
    ) -> Any:
        """Run ACQUIRE_PERMITS: names of permits, and head, most, ttl_ms of limits."""
        config = self.admit() if config is None else config
        args = [token, HOLDER_INFO, TTL, 0, TOLERANCE, config, *[STRIPE] * len(names)]
        keys = [*(self.key(f"lock:{name}") for name in names), self.meta]
        args += self._limits(limits)
        return self.run(scripts.ACQUIRE_PERMITS, keys, args)

    def inspect_permits(self, limits: Sequence[tuple[str, int, int]]) -> Any:
        """Run INSPECT_PERMITS."""
        return self.run(scripts.INSPECT_PERMITS, [self.meta], self._limits(limits))

    def join_permit_queue(
        self,
        limits: Sequence[tuple[str, int, int]],
        waiter: str = "w/1",
        rank: int = 1,
        ttl_ms: int = TTL,
    ) -> Any:
        """Run JOIN_PERMIT_QUEUE."""
        queues = [self.key(f"line:{head[:-2]}") for head, _, _ in limits]
        args = [waiter, rank, ttl_ms, *self._limits(limits)]
        return self.run(scripts.JOIN_PERMIT_QUEUE, queues, args)

    def leave_wait_queue(
        self,
        waiter: str = "w/1",
        free_in_ms: str = "0",
        *,
        has_permit: bool = False,
    ) -> Any:
        """Run LEAVE_WAIT_QUEUE."""
        args = [waiter, free_in_ms, int(has_permit)]
        return self.run(scripts.LEAVE_WAIT_QUEUE, self.pairs, args)

    def join(self, forget: str = "", *, random: str | None = None) -> Any:
        """Run JOIN, with another random part each time."""
        args = [random or secrets.token_hex(4), forget]
        return self.run(scripts.JOIN, [self.meta], args)

    def note(self, config: str = CONFIG, quarantine_ms: int = 61_000) -> Any:
        """Run NOTE."""
        return self.run(scripts.NOTE, [self.meta], [config, quarantine_ms])

    def counters(self, config: str = CONFIG) -> Any:
        """Run COUNTERS."""
        return self.run(scripts.COUNTERS, [self.meta], [config])

    def sync(
        self,
        *pairs: Any,
        identity: str = ME,
        set_floor: int = 0,
        config: str = CONFIG,
    ) -> Any:
        """Run SYNC."""
        args = [config, identity, set_floor, TOLERANCE, *pairs]
        return self.run(scripts.SYNC, [self.meta], args)

    def initialize(self, config: str = CONFIG, hint_us: int = 0) -> Any:
        """Run INITIALIZE."""
        return self.run(scripts.INITIALIZE, [self.meta], [config, hint_us, TOLERANCE])

    def close(
        self, quarantine_ms: int = 61_000, *, old: str = CONFIG, new: str = NEW
    ) -> Any:
        """Run CLOSE, by default to move the node from `CONFIG` to `NEW`."""
        args = [old, f"{PREFIX}{new}", new, quarantine_ms]
        return self.run(scripts.CLOSE, [self.meta], args)

    def open(self, *pairs: Any, new: str = NEW) -> Any:
        """Run OPEN."""
        return self.run(scripts.OPEN, [self.meta], [f"{PREFIX}{new}", new, *pairs])

    def abort(self, new: str = NEW) -> Any:
        """Run ABORT."""
        return self.run(scripts.ABORT, [self.meta], [f"{PREFIX}{new}", new])

    def reopen(self, new: str = NEW, pairs: Sequence[Any] = ()) -> Any:
        """Run REOPEN."""
        return self.run(scripts.REOPEN, [self.meta], [f"{PREFIX}{new}", *pairs])


class MemorySubject(Subject):
    """The node in memory, with a clock that tests move, or the machine's."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.clock = clock or FakeClock()
        self.use(MemoryNode(self.clock))

    def use(self, node: MemoryNode) -> None:
        """Replace the node, by one that publishes to a test."""
        self.node, self.keys = node, node.redis

    def execute(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply.

        It touches what its table of KEYS says, and nothing else: stores rely on that.
        """
        watched: Any = WatchedKeyspace(self.keys)
        self.node.redis = watched
        try:
            reply = self.node.execute(script, keys, args)
        finally:
            self.node.redis = self.keys
        if script is scripts.EXTEND:  # its last key is [seldom]
            watched.asked_for.add(_words(keys)[-1])
        if script in ALL_SCRIPTS:
            needs = Needs()
            needs.add(script.name, _words(keys), _words(args))
            watched.check(needs)
        return reply

    def restart(self, *, keep_memory: bool) -> None:
        """Become another server process."""
        self.node.restart(keep_memory=keep_memory)

    def promote(self) -> None:
        """Become a replica, and a master again."""
        self.node.promote()

    def may_evict(self, policy: str) -> None:
        """Set the policy."""
        self.keys.evicts = b"" if policy == "noeviction" else policy.encode()

    def evict(self, key: str) -> None:
        """Delete the key."""
        self.keys.evict(key.encode())


class WatchedKeyspace:
    """Keys that note which of them a script reads and changes."""

    _CHANGES = ("set", "replace", "delete", "pexpire", "hset", "hdel", "zadd", "zrem")
    _UNKNOWN = ("mget",)  # of the permits of a limit: a store loads them when asked
    _NO_KEYS = ("publish", "now_us", "may_be_copy", "note_vote", "proven_start_ms")

    def __init__(self, keys: Any) -> None:
        self._keys = keys
        self.read: set[tuple[bytes, bytes | None]] = set()
        self.changed: set[tuple[bytes, bytes | None]] = set()
        self.asked_for: set[bytes] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._keys, name)
        if not callable(found) or name in (*self._NO_KEYS, "look_at_clock"):
            return found

        def noted(key: Any, *words: Any, **options: Any) -> Any:
            if name in self._UNKNOWN:
                self.asked_for.update(key)
                return found(key)
            if name in (*self._CHANGES, "zpopmin"):
                fields = words[0] if name in ("hset", "hdel") else None
                fields = [fields] if isinstance(fields, bytes) else fields or [None]
                self.changed.update((key, field) for field in fields)
            elif name == "hgetall":
                return _WatchedFields(found(key), lambda one: self.read.add((key, one)))
            else:
                self.read.add((key, None))
            return found(key, *words, **options)

        return noted

    def check(self, needs: Needs) -> None:
        """Check that a store would have loaded and locked all of it."""
        loaded = needs.names | needs.large.keys() | self.asked_for
        for name, field in self.read:
            fields = needs.fields.get(name, frozenset())
            assert name in loaded or field in fields, (name, field)
        for name, field in self.changed:
            if field == b"looked":
                continue  # of a node that counts evicted keys; a store is none
            one = b"%b\n%b" % (name, field or b"")
            assert name in needs.locked or one in needs.locked, (name, field)


class _WatchedFields(dict[bytes, bytes]):
    """A hash that notes each field that is read, or None if all fields are read."""

    def __init__(
        self, fields: Mapping[bytes, bytes], note: Callable[[bytes | None], None]
    ) -> None:
        super().__init__(fields)
        self._note = note

    def get(self, field: bytes, default: Any = None) -> Any:
        self._note(field)
        return super().get(field, default)

    def items(self) -> Any:
        self._note(None)
        return super().items()


def _words(values: Sequence[Any]) -> list[bytes]:
    return [v if isinstance(v, bytes) else str(v).encode() for v in values]


class ServerSubject(Subject):
    """A real server, over a plain RESP2 connection."""

    clock = SYSTEM_CLOCK

    def __init__(self, node: DevNode) -> None:
        super().__init__()
        self.node = node
        self.node.start()
        self.keys = _ServerKeys(self.node.url)

    def anew(self) -> Self:
        """Return this server with keys that no test has used."""
        Subject.__init__(self)
        return self

    def stop(self) -> None:
        """End the server."""
        self.keys.disconnect()
        self.node.stop()

    def command(self, *words: Any) -> Any:
        """Send one command and return the raw reply, errors included."""
        return self.keys.command(*words)

    def execute(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""
        return self.command("EVAL", script.source, len(keys), *keys, *args)

    def restart(self, *, keep_memory: bool) -> None:
        """Become another server process."""
        self.keys.disconnect()
        self.node.restart(keep_memory=keep_memory)
        self.keys = _ServerKeys(self.node.url)

    def may_evict(self, policy: str) -> None:
        """Set the policy, with a limit of memory that is far away."""
        limit = 0 if policy == "noeviction" else 1 << 50
        for name, value in (("maxmemory-policy", policy), ("maxmemory", limit)):
            reply = self.command("CONFIG", "SET", name, value)
            assert not isinstance(reply, ErrorReply), reply

    def evict(self, key: str) -> None:
        """Be full until the key is gone; keys without a ttl stay."""
        self.may_evict("volatile-ttl")
        self.command("CONFIG", "SET", "maxmemory", 1)
        self.wait_until(lambda: self.get(key) is None)
        self.may_evict("noeviction")

    def promote(self) -> None:
        """Become a replica of a server that is not there, and a master again."""
        for master in (("127.0.0.1", "1"), ("NO", "ONE")):
            reply = self.command("REPLICAOF", *master)
            assert not isinstance(reply, ErrorReply), reply
        self.keys.disconnect()
        self.keys = _ServerKeys(self.node.url)


class StoreSubject(ServerSubject):
    """A store, over a port that speaks Redis for it."""

    def __init__(self, url: str) -> None:
        Subject.__init__(self)
        self.url = url
        self.front = Front(url)
        self.keys = _ServerKeys(self.front.url)

    def longest(self, ttl_ms: int) -> int:
        """Return more, if keys end by the bounds of a clock, which tells seconds."""
        is_exact = self.url.startswith("postgresql")
        return ttl_ms if is_exact else ttl_ms + 1100

    def stop(self) -> None:
        """Close the connection."""
        self.keys.disconnect()
        self.front.close()

    def subscription(self, channel: str) -> _ServerKeys:
        """Return a connection that has subscribed to a channel."""
        keys = _ServerKeys(self.front.url)
        assert keys.command("SUBSCRIBE", channel)[0] == b"subscribe"
        return keys

    def restart(self, *, keep_memory: bool) -> None:
        """A store forgets nothing when it restarts, so it has no other run id."""
        del keep_memory
        pytest.skip("a store forgets nothing when it restarts")

    def promote(self) -> None:
        """A store that replication may have changed has another run id."""
        pytest.skip("a store tells it by its name")

    def may_evict(self, policy: str) -> None:
        """A store evicts nothing."""
        del policy
        pytest.skip("a store evicts nothing")

    def evict(self, key: str) -> None:
        """A store evicts nothing."""
        del key
        pytest.skip("a store evicts nothing")


class StoreOfTwo(StoreSubject):
    """A store that two clients use in turn, as a test says.

    Attributes:
        turns: Whose turn it is, call for call; when it has ended, the first client's.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._clients = self.keys, _ServerKeys(self.front.url)
        self.turns: Iterator[bool] = iter(())

    def stop(self) -> None:
        """Close both connections."""
        for client in self._clients:
            client.disconnect()
        self.front.close()

    def execute(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""
        self.keys = self._clients[next(self.turns, False)]
        return super().execute(script, keys, args)


class _ServerKeys:
    """The methods of a ``MemoryKeyspace``, as commands to a server."""

    def __init__(self, url: str) -> None:
        self._connection = parse_node(url).connection(SOON)
        self._connection.connect()
        self._reader = new_reader()

    @property
    def replid(self) -> bytes:
        info: bytes = self._call("INFO", "replication")
        return info.partition(b"master_replid:")[2].split()[0]

    def disconnect(self) -> None:
        self._connection.disconnect()

    def command(self, *words: Any) -> Any:
        sock: Any = self._connection._sock  # noqa: SLF001  (the bytes are the point)
        sock.sendall(pack(words))
        return self.reply()

    def reply(self) -> Any:
        """Return the next reply, or message."""
        sock: Any = self._connection._sock  # noqa: SLF001  (as above)
        while (reply := self._reader.gets()) is False:
            data = sock.recv(65536)
            assert data, "the server has closed the connection"
            self._reader.feed(data)
        return reply

    def _call(self, *words: Any) -> Any:
        reply = self.command(*words)
        if isinstance(reply, ErrorReply):
            assert "WRONGTYPE" in str(reply), reply
            raise WrongType
        return reply

    def look_at_clock(self) -> None:
        pass

    def now_us(self) -> int:
        seconds, microseconds = self._call("TIME")[:2]  # a store adds how inexact it is
        return int(seconds) * 1_000_000 + int(microseconds)

    def clear(self) -> None:
        self._call("FLUSHALL")

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._call("GET", key)
        return value

    def set(self, key: bytes, value: bytes, *, px: int | None) -> None:
        self._call("SET", key, value, *(("PX", px) if px else ()))

    def hdel(self, key: bytes, field: bytes) -> None:
        self._call("HDEL", key, field)

    def delete(self, key: bytes) -> None:
        self._call("DEL", key)

    def pttl(self, key: bytes) -> int:
        left: int = self._call("PTTL", key)
        return left

    def hgetall(self, key: bytes) -> dict[bytes, bytes]:
        pairs = self._call("HGETALL", key)
        return dict(zip(pairs[::2], pairs[1::2], strict=True))

    def hset(self, key: bytes, fields: Mapping[bytes, bytes]) -> None:
        self._call("HSET", key, *(word for pair in fields.items() for word in pair))

    def zadd(self, key: bytes, member: bytes, score: float) -> None:
        self._call("ZADD", key, repr(score), member)

    def zset(self, key: bytes) -> list[bytes]:
        words = "ZRANGEBYSCORE", key, "-inf", "+inf", "LIMIT", 0, 1_000_000
        members: list[bytes] = self._call(*words)
        return members
