"""One open connection to a node, made by redis-py, and a check of the server.

redis-py knows URLs, TLS, ACLs, unix sockets and the handshake. From then on ``node``
reads the socket without waiting.
"""

from __future__ import annotations

import contextlib

# Else the first thread that connects imports it, and a child that is forked meanwhile
# has a half-imported module: it can never connect.
import encodings.idna  # noqa: F401
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import ALL_SCRIPTS
from celery_redlock.core.transport.resp import new_reader

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from celery_redlock.core.transport.resp import ReplyReader
    from celery_redlock.core.transport.url import NodeAddress

__all__ = ["Connection", "NodeFacts", "open_connection", "would_block"]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The server's description of itself, from when the connection was made.

    Attributes:
        run_id: Random name of the server process.
        version: Redis version.
        unfit_because: Why it must not vote, in words; ``""`` when it may.
    """

    run_id: str
    version: str
    unfit_because: str


class Connection:
    """One open connection and the parser of its replies."""

    __slots__ = ("connection", "facts", "reader", "sock")

    def __init__(self, connection: AbstractConnection, facts: NodeFacts) -> None:
        self.connection = connection
        sock: Any = connection._sock  # noqa: SLF001  (we read it ourselves)
        self.sock = sock
        self.sock.settimeout(0)
        self.reader: ReplyReader = new_reader()
        self.facts = facts

    def close(self) -> None:
        """Close the connection."""
        self.connection.disconnect()

    def disown(self) -> None:
        """Close the copy of a forked child; the parent's stays open."""
        self.sock.close()


def open_connection(
    address: NodeAddress, timeout: float, *, load_scripts: bool = True
) -> Connection | str:
    """Connect and check the server, blocking; return in words why that failed.

    Args:
        address: Where the server is.
        timeout: Seconds for each step.
        load_scripts: Load our scripts. Off for a server that need not be a node.
    """
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
        if load_scripts:
            _load_scripts(connection)
        return Connection(connection, _facts_of(server, replication))
    except AuthenticationError:
        return "rejected the credentials"
    except TimeoutError:
        return f"did not accept a connection within {timeout:g} s"
    except (RedisError, OSError, ValueError) as error:
        if "refused" in str(error).lower():
            return "refused the connection"
        # redis-py wraps the system's error in words about hosts and numbers.
        cause = error if isinstance(error, OSError) else error.__context__
        words = cause.strerror if isinstance(cause, OSError) else ""
        return f"cannot be connected to: {(words or str(error)).rstrip('.')}"


def _load_scripts(connection: AbstractConnection) -> None:
    """Load the scripts, so that even the first vote of a node comes in time."""
    from redis.exceptions import ResponseError  # noqa: PLC0415  (import is 60 ms)

    for script in ALL_SCRIPTS:
        connection.send_command("SCRIPT", "LOAD", script.source)
    for _ in ALL_SCRIPTS:
        with contextlib.suppress(ResponseError):  # not allowed: EVAL brings them
            connection.read_response()


def _fields(info: Any) -> dict[str, str]:
    lines = bytes(info).decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line)


def _facts_of(server: dict[str, str], replication: dict[str, str]) -> NodeFacts:
    unfit = ""
    mode = server.get("redis_mode") or server.get("server_mode", "standalone")  # Valkey
    if mode == "cluster":
        unfit = "belongs to a Redis Cluster; use independent masters"
    elif mode != "standalone":
        unfit = f"runs in {mode} mode; use an independent master"
    elif replication.get("role", "master") != "master":
        primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
        unfit = f"is a replica of {primary}; use independent masters"
    return NodeFacts(server.get("run_id", ""), server.get("redis_version", ""), unfit)


def would_block(error: OSError) -> bool:
    """Tell whether the socket only says "not now", in plain or in TLS errors."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )
