"""One open connection to a node, made by redis-py, and a look at what it is.

redis-py knows URLs, TLS, ACLs, unix sockets and the handshake; from then on the
socket is read without waiting, by ``core.node``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import ALL_SCRIPTS
from celery_redlock.core.wire import new_reader

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from celery_redlock.core.address import NodeAddress
    from celery_redlock.core.wire import ReplyReader

__all__ = ["Link", "NodeFacts", "open_link", "would_block"]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What kind of server it is, as it said when it was connected to.

    Attributes:
        run_id: Random name of the server process.
        version: Redis version.
        misfit: Why it must not vote, for people; ``""`` when it may.
    """

    run_id: str
    version: str
    misfit: str


class Link:
    """One open connection and the parser of what it says."""

    __slots__ = ("connection", "facts", "reader", "sock")

    def __init__(self, connection: AbstractConnection, facts: NodeFacts) -> None:
        self.connection = connection
        sock: Any = connection._sock  # noqa: SLF001  (we read it ourselves)
        self.sock = sock
        self.sock.settimeout(0)
        self.reader: ReplyReader = new_reader()
        self.facts = facts

    def close(self) -> None:
        """Close it."""
        self.connection.disconnect()

    def disown(self) -> None:
        """Close a forked child's copy, which leaves the parent's open."""
        self.sock.close()


def open_link(address: NodeAddress, timeout: float) -> Link | str:
    """Connect and look at the server, blocking; or say what went wrong."""
    from redis.exceptions import (  # noqa: PLC0415  (import is 60 ms)
        AuthenticationError,
        RedisError,
        TimeoutError,  # noqa: A004
    )

    try:
        connection = address.connection(timeout)
        connection.connect()
        connection.send_command("INFO", "server")
        server = _fields(connection.read_response())
        connection.send_command("INFO", "replication")
        replication = _fields(connection.read_response())
        _teach(connection)
        return Link(connection, _facts_of(server, replication))
    except AuthenticationError:
        return "rejected the credentials"
    except TimeoutError:
        return f"did not accept a connection within {timeout:g} s"
    except (RedisError, OSError, UnicodeError) as error:
        if "refused" in str(error).lower():
            return "refused the connection"
        # redis-py wraps the system's error in words about hosts and numbers.
        cause = error if isinstance(error, OSError) else error.__context__
        words = cause.strerror if isinstance(cause, OSError) else ""
        return f"cannot be connected to: {(words or str(error)).rstrip('.')}"


def _teach(connection: AbstractConnection) -> None:
    """Load the scripts, so that also the first vote of a node comes in time."""
    from redis.exceptions import ResponseError  # noqa: PLC0415  (import is 60 ms)

    for script in ALL_SCRIPTS:
        connection.send_command("SCRIPT", "LOAD", script.source)
    for _ in ALL_SCRIPTS:
        with contextlib.suppress(ResponseError):  # not allowed: they come with EVAL
            connection.read_response()


def _fields(info: Any) -> dict[str, str]:
    lines = bytes(info).decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line)


def _facts_of(server: dict[str, str], replication: dict[str, str]) -> NodeFacts:
    misfit = ""
    mode = server.get("redis_mode", "standalone")
    if mode == "cluster":
        misfit = "belongs to a Redis Cluster; use independent masters"
    elif mode != "standalone":
        misfit = f"runs in {mode} mode; use an independent master"
    elif replication.get("role", "master") != "master":
        primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
        misfit = f"is a replica of {primary}; use independent masters"
    return NodeFacts(server.get("run_id", ""), server.get("redis_version", ""), misfit)


def would_block(error: OSError) -> bool:
    """Whether the socket only says "not now", in plain or in TLS words."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )
