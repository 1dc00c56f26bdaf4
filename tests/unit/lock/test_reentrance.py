"""A signal handler or a finaliser that asks nodes in the middle of another request."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from celery_redlock.scripts import RELEASE
from celery_redlock.testing import FakeClock
from celery_redlock.wire.requests import ScriptRequest, all_answered
from tests.unit.lock.sockets import Connection, Net, commands

REASON = "lost its connection, because a request was interrupted"


class Stage:
    """Three nodes that answer at once, and a handler that asks them."""

    def __init__(self, clock: FakeClock) -> None:
        self.net = Net(clock, "a", "b", "c")
        self.net.connect()
        self.again = [Connection(name) for name in "abc"]
        for address, connection in zip(self.net.addresses, self.again, strict=True):
            address.coming.append(connection)
        self.net.on_select.append(self._answer)
        self.asked: list[tuple[Connection, bytes]] = []  # each key, and by which one
        self.inner: ScriptRequest | None = None

    def _answer(self) -> None:
        for connection in [*self.net.connections, *self.again]:
            sock = connection.sock
            for words in commands(sock.sent):
                self.asked.append((connection, words[3]))
                sock.replies([2, words[3], 900])
            sock.sent.clear()

    def request(self, key: str, **options: Any) -> ScriptRequest:
        """Return a request whose replies name its key."""
        return self.net.request(key, done_when=all_answered, **options)

    def handle(self) -> None:
        """Ask the nodes, as a handler does; once."""
        if self.inner is None:
            self.inner = self.request("inner")
            self.net.broadcast.ask(self.inner)


@pytest.fixture
def stage(clock: FakeClock) -> Stage:
    """Give the stage."""
    return Stage(clock)


def during_select(stage: Stage) -> None:
    """Call the handler while the caller waits for replies."""
    stage.net.on_select.insert(0, stage.handle)


def during(stage: Stage, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Call the handler while the caller sends to, or reads from, the second node."""
    sock = stage.net.socks[1]
    usual = getattr(sock, call)

    def interrupted(argument: Any) -> Any:
        stage.handle()
        return usual(argument)

    monkeypatch.setattr(sock, call, interrupted)


def keys(request: ScriptRequest | None) -> list[Any]:
    """Return the key that each node has named in its reply."""
    assert request is not None
    return [reply and reply[1] for reply in request.replies]


def test_handler_that_comes_while_the_caller_waits_costs_it_nothing(
    stage: Stage,
) -> None:
    """Both get their own replies, on the connections that there were."""
    during_select(stage)
    outer = stage.request("outer")

    stage.net.broadcast.ask(outer)

    assert keys(stage.inner) == [b"inner"] * 3
    assert keys(outer) == [b"outer"] * 3
    assert not any(connection.is_disconnected for connection in stage.net.connections)


@pytest.mark.parametrize("call", ["send", "recv"])
def test_handler_that_comes_in_a_change_gets_its_replies_on_new_connections(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The request in flight fails as if the nodes had closed their connections."""
    during(stage, monkeypatch, call)
    outer = stage.request("outer")

    stage.net.broadcast.ask(outer)
    last = stage.request("last")
    stage.net.broadcast.ask(last)

    assert keys(stage.inner) == [b"inner"] * 3
    assert REASON in outer.ballot.reasons()
    assert {key for key in keys(outer) if key} <= {b"outer"}
    assert keys(last) == [b"last"] * 3
    assert all(connection.is_disconnected for connection in stage.net.connections)


def test_release_that_a_handler_interrupts_is_sent_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """To each node that may not have had it; twice is harmless."""
    during(stage, monkeypatch, "send")
    until = clock.monotonic() + 60.0

    stage.net.broadcast.send(stage.request("outer", script=RELEASE, resend_until=until))
    assert keys(stage.inner) == [b"inner"] * 3
    stage.net.broadcast.drain()
    stage.net.broadcast.drain()

    assert all((one, b"outer") in stage.asked for one in stage.again)


def test_interruption_in_a_change_costs_one_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are kept, and the next request has all nodes."""

    def interrupt(_: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage.net.socks[1], "send", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stage.net.broadcast.ask(stage.request("interrupted"))
    asked = stage.request("next")

    stage.net.broadcast.ask(asked)

    assert keys(asked) == [b"next"] * 3
    gone = [connection.is_disconnected for connection in stage.net.connections]
    assert gone == [False, True, False]


def test_interruption_of_a_wait_costs_no_connection(stage: Stage) -> None:
    """Nothing is being changed then."""

    def interrupt() -> None:
        stage.net.on_select.remove(interrupt)
        raise KeyboardInterrupt

    stage.net.on_select.insert(0, interrupt)
    with pytest.raises(KeyboardInterrupt):
        stage.net.broadcast.ask(stage.request("interrupted"))
    asked = stage.request("next")

    stage.net.broadcast.ask(asked)

    assert keys(asked) == [b"next"] * 3
    assert not any(connection.is_disconnected for connection in stage.net.connections)


def test_request_that_meets_an_error_each_time_fails_alone(stage: Stage) -> None:
    """It does not stay in the queue, where all other requests would wait behind it."""

    def fail() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stage.net.broadcast.send(stage.request("bad", is_obsolete=fail))
    tries = [try_to_ask(stage) for _ in range(20)]

    assert keys(tries[-1]) == [b"next"] * 3


def try_to_ask(stage: Stage) -> ScriptRequest:
    """Ask, and ignore the error that another request meets."""
    asked = stage.request("next")
    with contextlib.suppress(ZeroDivisionError):
        stage.net.broadcast.ask(asked)
    return asked
