"""Requests and replies over real sockets, with servers that are slow or wrong.

The servers are threads of this process around `MemoryNode`, so that a test decides
when a byte is read and when it is sent.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts import ACQUIRE, ALL_SCRIPTS
from celery_redlock.testing import MemoryNode
from tests.harness.tcp import ScriptedServer
from tests.harness.waiting import until
from tests.unit.lock.sockets import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON = 10.0  # seconds
# Seconds for nodes that are not late on purpose.
PATIENT_OPTIONS = {"node_timeout": 5.0, "connect_timeout": SOON, "max_ttl": 60.0}
SCRIPTS = {
    name.encode(): script
    for script in ALL_SCRIPTS
    for name in (script.sha, script.source)
}


class TinyServer(ScriptedServer):
    """A node on a real socket that is as slow or as wrong as a test asks.

    Attributes:
        hangs_up: Whether it closes the connection when it has granted a lock.
    """

    def __init__(self) -> None:
        self.node = MemoryNode()
        self.hangs_up = False
        super().__init__(self._reply)

    def _reply(self, words: list[bytes], sock: socket.socket) -> bytes:
        match words[0].upper():
            case b"INFO":
                facts = f"redis_mode:standalone\nrole:master\nrun_id:{self.node.run_id}"
                return encoded(facts.replace("\n", "\r\n").encode())
            case b"SCRIPT":
                return encoded(SCRIPTS[words[2]].sha.encode())
            case b"EVAL" | b"EVALSHA":
                script, keys = SCRIPTS[words[1]], 3 + int(words[2])
                reply = self.node.execute(script, words[3:keys], words[keys:])
                if self.hangs_up and script is ACQUIRE:
                    sock.shutdown(socket.SHUT_RDWR)
                return encoded(reply)
            case b"CLIENT" | b"SELECT":
                return encoded(("OK",))
        return encoded(ErrorReply(f"ERR {words}"))


def stored(servers: list[TinyServer], key: str = "k") -> list[bool]:
    """Return for each server whether it has a lock."""
    name = f"redlock:lock:{key}".encode()
    return [server.node.redis.get(name) is not None for server in servers]


@pytest.fixture
def servers() -> Iterator[list[TinyServer]]:
    """Give three servers."""
    servers = [TinyServer() for _ in range(3)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def connect(servers: list[TinyServer]) -> Iterator[Callable[..., Redlock]]:
    """Give a function that makes a service on the servers, which vote."""
    made: list[Redlock] = []

    def make(**options: Any) -> Redlock:
        urls = [server.url for server in servers]
        redlock = Redlock(urls, **{**PATIENT_OPTIONS, **options})
        if not made:
            redlock.guard.initialize()
        made.append(redlock)
        return redlock

    yield make
    for redlock in made:
        redlock.close()


@pytest.mark.parametrize("piece", [1, 3])
def test_replies_that_come_byte_by_byte_are_whole(
    servers: list[TinyServer], connect: Callable[..., Redlock], piece: int
) -> None:
    """Votes, holders and fences are read correctly, wherever a packet ends."""
    redlock, rival = connect(), connect()
    for server in servers:
        server.piece = piece

    fences = []
    for _ in range(5):
        lease = redlock.acquire("k")
        with pytest.raises(LockHeld) as caught:
            rival.acquire("k")
        assert caught.value.holder is not None
        assert caught.value.holder.token == lease.token
        assert redlock.extend(lease)
        assert redlock.release(lease) >= 1  # the rival may have had one before it
        until(lambda: not any(stored(servers)))
        fences.append(lease.fence)

    assert fences == sorted(set(fences))


def test_command_larger_than_the_buffers_is_sent_in_parts(
    servers: list[TinyServer], connect: Callable[..., Redlock]
) -> None:
    """A client sends the rest of a command when a slow node reads on, in order."""
    redlock = connect()
    redlock.check()
    for server in servers:
        server.reads.clear()
        threading.Timer(0.1, server.reads.set).start()

    lease = redlock.acquire("k", holder=Holder("", task="t" * 3_000_000))

    assert redlock.release(lease) >= 2
    until(lambda: stored(servers) == [False] * 3)
    assert [server.connections for server in servers] == [1, 1, 1]


def test_late_replies_are_entered_in_their_own_questions(
    servers: list[TinyServer], connect: Callable[..., Redlock]
) -> None:
    """A node answers a dozen requests late and at once; each request gets its reply."""
    redlock = connect(node_timeout=1.0)
    redlock.check()
    servers[0].speaks.clear()
    leases = [redlock.acquire(f"k{number}") for number in range(6)]
    inspections = [redlock.inspect(lease.key) for lease in leases]
    assert [inspection.ballot.votes[0] for inspection in inspections] == [None] * 6

    servers[0].speaks.set()

    def drained() -> bool:
        redlock.transport.drain(redlock.clock.monotonic())
        return all(inspection.ballot.votes[0] for inspection in inspections)

    until(drained)
    tokens = [i.ballot.votes[0] and i.ballot.votes[0].token for i in inspections]
    assert tokens == [lease.token for lease in leases]
    assert servers[0].connections == 1


def test_first_question_waits_for_slow_greetings(
    servers: list[TinyServer], connect: Callable[..., Redlock]
) -> None:
    """A request waits for a connection for longer than `node_timeout`."""
    connect()
    redlock = connect(node_timeout=0.05, connect_timeout=20.0)
    for server in servers:
        server.greets.clear()
        threading.Timer(0.3, server.greets.set).start()

    assert redlock.acquire("k").is_valid()


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the protocol"),
        (
            b"-ERR max number of clients reached\r\n",
            "cannot be connected to: max number",
        ),
        (b"-LOADING Redis is loading the dataset\r\n", "cannot be connected to"),
        (b"*2147483647\r\n", "did not accept a connection within 1 s"),
        (b"$999999999999\r\n" + bytes(2 << 20), "sent over a megabyte"),
        (b"." * (2 << 20), "sent over a megabyte"),
    ],
    ids=["http", "full", "loading", "array", "bulk", "stream"],
)
def test_server_that_is_none_is_named(
    servers: list[TinyServer],
    connect: Callable[..., Redlock],
    greeting: bytes,
    reason: str,
) -> None:
    """The error is one of the package's, with the reason, and none of redis-py."""
    connect()
    redlock = connect(connect_timeout=1.0)
    for server in servers[:2]:
        server.greeting = greeting

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")

    assert str(caught.value).count(reason) == 2


def test_lock_whose_grant_got_lost_is_not_said_to_be_free(
    servers: list[TinyServer], connect: Callable[..., Redlock]
) -> None:
    """Connections break between the grants and their arrival; a release follows."""
    redlock = connect()
    redlock.check()
    for server in servers:
        server.hangs_up = True

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k", ttl=30)
    for server in servers:
        server.hangs_up = False

    unsure = "may be taken there until it is reached again, at most for 30 s"
    assert unsure in str(caught.value)
    until(lambda: redlock.check().has_quorum and not any(stored(servers)))
