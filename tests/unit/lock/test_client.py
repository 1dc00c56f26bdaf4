"""The client of operators' commands: a server that it cannot read is a result."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from celery_redlock.wire.client import NodeClient, NodeUnreachable
from celery_redlock.wire.url import parse_node
from tests.harness.tcp import ScriptedServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

SOON = 10.0  # seconds


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Give a server that shakes hands, and then sends lengths that are no numbers."""

    def answer(words: list[bytes], _: socket.socket) -> bytes:
        name = words[0].upper()
        if name == b"INFO":
            return b"$11\r\nrole:master\r\n"
        return b"+OK\r\n" if name in (b"CLIENT", b"SELECT") else b"$x\r\n"

    server = ScriptedServer(answer)
    yield server
    server.stop()


def test_malformed_reply_is_a_result_like_any_other(server: ScriptedServer) -> None:
    """A command shows it in its table, and goes on with the other nodes."""
    with (
        NodeClient(parse_node(server.url), SOON) as client,
        pytest.raises(NodeUnreachable, match="does not speak the protocol of Redis"),
    ):
        client.ask(("DBSIZE",))


def test_malformed_greeting_is_a_result_like_any_other(server: ScriptedServer) -> None:
    """Also before the connection is made."""
    server.greeting = b"$x\r\n"

    with pytest.raises(NodeUnreachable, match="cannot be connected to"):
        NodeClient(parse_node(server.url), SOON)


@pytest.mark.parametrize(
    "reply",
    [b"$-1\r\n", b":7\r\n", b"*1\r\n$1\r\na\r\n"],
    ids=["nil", "number", "list"],
)
def test_server_that_describes_itself_by_no_text_is_no_redis(reply: bytes) -> None:
    """A command shows it in its table, and goes on with the other nodes."""
    server = ScriptedServer(
        lambda words, _: reply if words[0] == b"INFO" else b"+OK\r\n"
    )
    try:
        with pytest.raises(
            NodeUnreachable, match="does not speak the protocol of Redis"
        ):
            NodeClient(parse_node(server.url), SOON)
    finally:
        server.stop()


def test_server_that_stops_answering_is_not_said_to_be_down() -> None:
    """It accepted the connection: to start it again would lose its locks."""

    def answer(words: list[bytes], _: socket.socket) -> bytes:
        if words[0].upper() == b"INFO":
            return b"$11\r\nrole:master\r\n"
        return b"" if words[0].upper() == b"DBSIZE" else b"+OK\r\n"

    server = ScriptedServer(answer)
    try:
        with (
            NodeClient(parse_node(server.url), 0.2) as client,
            pytest.raises(NodeUnreachable, match="Do not restart it") as told,
        ):
            client.ask(("DBSIZE",))
    finally:
        server.stop()

    assert str(told.value).startswith("accepts connections, but did not answer")


def drip(connection: socket.socket) -> bytes:
    """Send an answer byte by byte, without an end."""
    with suppress(OSError):  # until the client closes it
        while True:
            connection.sendall(b"+")
            time.sleep(0.01)
    return b""


def test_server_that_sends_its_greeting_byte_by_byte_is_left() -> None:
    """A few parts may take their time, and not all of them together for ever."""
    server = ScriptedServer(
        lambda words, connection: (
            drip(connection) if words[0].upper() == b"INFO" else b"+OK\r\n"
        )
    )
    try:
        with pytest.raises(NodeUnreachable, match=r"did not answer within 0\.1 s"):
            NodeClient(parse_node(server.url), 0.1)
    finally:
        server.stop()


def test_server_that_sends_its_answer_byte_by_byte_has_the_same_time() -> None:
    """An answer without an end would stop the whole command."""

    def answer(words: list[bytes], connection: socket.socket) -> bytes:
        if words[0].upper() == b"DBSIZE":
            return drip(connection)
        info = words[0].upper() == b"INFO"
        return b"$11\r\nrole:master\r\n" if info else b"+OK\r\n"

    server = ScriptedServer(answer)
    try:
        with (
            NodeClient(parse_node(server.url), 0.2) as client,
            pytest.raises(NodeUnreachable, match=r"did not answer within 0\.2 s"),
        ):
            client.ask(("DBSIZE",))
    finally:
        server.stop()
