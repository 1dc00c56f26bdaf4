"""A signal handler or a finaliser that uses the connections in the middle of a use.

The mutex of a broadcast lets its own thread in again. So a handler that runs between
any two lines of ``node`` may send, receive, and have a connection replaced.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.resp import ErrorReply, PythonReader
from celery_redlock.core.scripts import RELEASE
from celery_redlock.core.transport import node
from celery_redlock.core.transport.requests import all_answered
from tests.interruptions import Interruption, counts_places
from tests.unit.core.sockets import Address, Connection, Net, Sock, encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.transport.requests import ScriptRequest
    from celery_redlock.testing import FakeClock

NOSCRIPT = ErrorReply("NOSCRIPT No matching script. Please use EVAL.")


class Call(Interruption):
    """Calls a function at one place of the code, as a signal handler does."""

    def __init__(self, at: int, below: str, call: Callable[[], object]) -> None:
        super().__init__(at, below)
        self._call = call

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            self._call()


class Echo(Sock):
    """A socket of a server that names the key of each command in its reply."""

    def __init__(self, *, forgets: bool) -> None:
        super().__init__()
        self._reader = PythonReader()
        self._forgets = forgets

    def send(self, data: bytes | bytearray) -> int:
        """Take half of the bytes at most, and answer the commands that are whole."""
        self.room = -(-len(data) // 2)
        taken = super().send(data)
        self._reader.feed(bytes(data[:taken]))
        self.room = 1
        while (words := self._reader.gets()) is not False:
            self.incoming.append(encoded(self._reply(words)))
        return taken

    def _reply(self, words: list[bytes]) -> Any:
        if words[0] == b"SCRIPT":
            return b"sha"
        if words[0] == b"EVALSHA" and self._forgets:
            return NOSCRIPT
        return [2, words[3], 900]


class Echoes(Address):
    """The address of such a server; it accepts every connection."""

    def __init__(self, name: str, *, forgets: bool) -> None:
        super().__init__(name=name)
        self._forgets = forgets

    def connection(self, timeout: float) -> Connection:
        """Return a new connection."""
        connection = Connection(run_id=self.name)
        connection._sock = Echo(forgets=self._forgets)  # noqa: SLF001  (a stand-in)
        self.coming.append(connection)
        return super().connection(timeout)


class Stage:
    """A node that echoes, and the requests to it."""

    def __init__(self, clock: FakeClock, *, forgets: bool) -> None:
        self.net = Net(clock, "a")
        self.requests: list[ScriptRequest] = []
        address: Any = Echoes("node", forgets=forgets)
        self.net.nodes[0]._connector._address = address  # noqa: SLF001

    def request(self, key: str, **options: Any) -> ScriptRequest:
        """Return a request about this key, whose replies are checked."""
        request = self.net.request(key, done_when=all_answered, **options)
        self.requests.append(request)
        return request

    def release(self, key: str) -> ScriptRequest:
        """Return a release of this key, which must arrive."""
        until = self.net.clock.monotonic() + 60.0
        return self.request(key, script=RELEASE, resend_until=until)

    def ask(self, key: str) -> None:
        """Ask about this key, between two requests that are not waited for."""
        self.net.broadcast.send(self.release(f"{key} before"))
        self.net.broadcast.ask(self.request(key))
        self.net.broadcast.send(self.release(f"{key} after"))


@counts_places
@pytest.mark.parametrize("forgets", [False, True], ids=["known", "forgotten"])
def test_reply_is_never_entered_for_another_request(
    clock: FakeClock, *, forgets: bool
) -> None:
    """Wherever the handler comes, each reply belongs to its request."""
    for place in itertools.count(1):
        stage = Stage(clock, forgets=forgets)
        stage.ask("first")
        clock.advance(10.0)  # so that a connection can be made anew at once
        call = Call(place, node.__file__, lambda: stage.ask("inner"))  # noqa: B023
        with call:
            stage.ask("outer")
        clock.advance(10.0)
        stage.ask("last")

        for request in stage.requests:
            key = request.call[1][0].encode()
            replies = [reply for reply in request.replies if reply is not None]
            assert all(reply == [2, key, 900] for reply in replies), (place, replies)
        last = stage.requests[-2]
        assert last.replies == [[2, b"last", 900]], (place, last.ballot.reasons())
        if not call.was_raised:
            break

    assert place > 50
