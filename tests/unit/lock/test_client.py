"""The client of operators' commands: a server that it cannot read is a result."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from celery_redlock.wire.client import NodeClient, NodeUnreachable
from celery_redlock.wire.url import parse_node
from tests.harness.tcp import ScriptedServer

Serve = Callable[..., ScriptedServer]

SOON = 10.0  # seconds


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Give a function that starts a server, which shakes hands as a Redis does.

    Its arguments are the replies to INFO and to DBSIZE: bytes, or a function that sends
    them on the connection. Other commands are answered by OK.
    """
    servers: list[ScriptedServer] = []

    def start(info: Any = b"$11\r\nrole:master\r\n", dbsize: Any = b"") -> Any:
        def answer(words: list[bytes], connection: socket.socket) -> bytes:
            reply = {b"INFO": info, b"DBSIZE": dbsize}.get(words[0].upper(), b"+OK\r\n")
            return bytes(reply(connection) if callable(reply) else reply)

        servers.append(ScriptedServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def test_malformed_reply_is_a_result_like_any_other(serve: Serve) -> None:
    """A command shows it in its table, and goes on with the other nodes."""
    with (
        NodeClient(parse_node(serve(dbsize=b"$x\r\n").url), SOON) as client,
        pytest.raises(NodeUnreachable, match="does not speak the protocol of Redis"),
    ):
        client.ask(("DBSIZE",))


def test_malformed_greeting_is_a_result_like_any_other(serve: Serve) -> None:
    """Also before the connection is made."""
    server = serve()
    server.greeting = b"$x\r\n"

    with pytest.raises(NodeUnreachable, match="cannot be connected to"):
        NodeClient(parse_node(server.url), SOON)


@pytest.mark.parametrize(
    "reply",
    [b"$-1\r\n", b":7\r\n", b"*1\r\n$1\r\na\r\n"],
    ids=["nil", "number", "list"],
)
def test_server_that_describes_itself_by_no_text_is_no_redis(
    serve: Serve, reply: bytes
) -> None:
    """A command shows it in its table, and goes on with the other nodes."""
    with pytest.raises(NodeUnreachable, match="does not speak the protocol of Redis"):
        NodeClient(parse_node(serve(info=reply).url), SOON)


def drip(connection: socket.socket) -> bytes:
    """Send an answer byte by byte, without an end."""
    with suppress(OSError):  # until the client closes it
        while True:
            connection.sendall(b"+")
            time.sleep(0.01)
    return b""


def test_server_that_sends_its_greeting_byte_by_byte_is_left(serve: Serve) -> None:
    """A few parts may take their time, and not all of them together for ever."""
    with pytest.raises(NodeUnreachable, match=r"did not answer within 0\.1 s"):
        NodeClient(parse_node(serve(info=drip).url), 0.1)


@pytest.mark.parametrize("dbsize", [b"", drip], ids=["nothing", "bytes without end"])
def test_server_that_stops_answering_is_not_said_to_be_down(
    serve: Serve, dbsize: bytes | Callable[[socket.socket], bytes]
) -> None:
    """It accepted the connection: to start it again would lose its locks."""
    with (
        NodeClient(parse_node(serve(dbsize=dbsize).url), 0.2) as client,
        pytest.raises(NodeUnreachable, match="Do not restart it") as told,
    ):
        client.ask(("DBSIZE",))

    said = "accepts connections, but did not answer within 0.2 s"
    assert str(told.value).startswith(said)
