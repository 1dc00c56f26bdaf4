"""One open connection to a node, made by redis-py, and a check of the server.

redis-py knows URLs, TLS, ACLs, unix sockets and the handshake. From then on ``node``
reads the socket without waiting.
"""

from __future__ import annotations

import contextlib

# Else the first thread that connects imports it, and a child that is forked meanwhile
# has a half-imported module: it can never connect.
import encodings.idna  # noqa: F401
import os
import re
import socket
import weakref
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from celery_redlock.basics.resp import (
    BUSY,
    DOES_NOT_KNOW,
    ErrorReply,
    may_evict,
    new_reader,
    pack,
    unknown_command,
)
from celery_redlock.basics.text import MOST_TOLD, fields_of, printable_line
from celery_redlock.scripts import ALL_SCRIPTS
from celery_redlock.stores.connection import REJECTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from redis.connection import AbstractConnection

    from celery_redlock.basics.resp import ReplyReader
    from celery_redlock.wire.requests import ScriptRequest
    from celery_redlock.wire.url import NodeAddress


_READ_SIZE = 1 << 14
_READ_AND_WRITE = EVENT_READ | EVENT_WRITE
_MOST_UNSENT = 1 << 22  # bytes: a node that takes no more than this is gone


class ConnectionLost(Exception):  # noqa: N818  (ends a connection; never leaves wire)
    """A connection cannot be used any more. The text reads on after the node's name.

    Attributes:
        may_be_done: Whether the requests in flight may be done nevertheless.
    """

    may_be_done = True


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The server's description of itself, from when the connection was made.

    Attributes:
        run_id: Random name of the server process.
        unfit_because: Why it must not vote, in words; ``""`` when it may.
    """

    run_id: str
    unfit_because: str


class Connection:
    """One open connection and the parser of its replies. Nothing here blocks.

    Attributes:
        facts: The server's description of itself.
        sent_scripts: The SHAs of the scripts that were sent to it with their source;
            None if it has all of ours, as far as is known.
        events: The events of the socket to wait for.
        unsent: The bytes that the socket did not take.
        is_tls: Whether it may hold more bytes than its socket shows.
    """

    is_working = False  # what was sent is carried out by the server

    __slots__ = (
        "__weakref__",
        "_finalizer",
        "connection",
        "events",
        "facts",
        "is_tls",
        "reader",
        "sent_scripts",
        "sock",
        "unsent",
    )

    def __init__(
        self, connection: AbstractConnection, facts: NodeFacts, *, has_scripts: bool
    ) -> None:
        self.connection = connection
        sock: Any = connection._sock  # noqa: SLF001  (we read it ourselves)
        self.sock = sock
        self.sock.settimeout(0)
        self.reader: ReplyReader = new_reader()
        self.events = EVENT_READ
        self.unsent = bytearray()
        self.is_tls = hasattr(sock, "pending")
        self.facts = facts
        self.sent_scripts: set[str] | None = None if has_scripts else set()
        # For a service that is dropped without ``close``. The collector calls it before
        # any ``__del__``, so before Python warns that the socket was left open.
        self._finalizer = weakref.finalize(self, connection.disconnect)
        self._finalizer.atexit = False

    def send(self, requests: Sequence[ScriptRequest]) -> None:
        """Send requests; a script that the server lacks, with its source once.

        Raises:
            ConnectionLost: The connection is lost.
        """
        sent = self.sent_scripts
        if sent is None:
            packed = [request.packed() for request in requests]
        else:
            packed = [_packed(request, sent) for request in requests]
        self._write(b"".join(packed))

    def _write(self, data: bytes) -> None:
        if not self.unsent:
            try:
                count = self.sock.send(data)
            except OSError as error:
                if not _would_block(error):
                    raise ConnectionLost(f"lost its connection: {error}") from None
                count = 0
            if count == len(data):
                return
            data = data[count:]
        self.unsent += data
        self.events = _READ_AND_WRITE
        if len(self.unsent) > _MOST_UNSENT:
            raise ConnectionLost("accepts no more data")

    def flush(self) -> None:
        """Send bytes that the socket did not take before.

        Raises:
            ConnectionLost: The connection is lost.
        """
        unsent, self.unsent, self.events = bytes(self.unsent), bytearray(), EVENT_READ
        self._write(unsent)

    def replies(self) -> Iterator[Any]:
        """Read what has come, and yield the replies. An error is a reply, too.

        Raises:
            ConnectionLost: The connection is lost, or what has come is no reply.
        """
        sock, reader = self.sock, self.reader
        try:
            data = sock.recv(_READ_SIZE)
            while data:
                reader.feed(data)
                if len(data) < _READ_SIZE and not self.is_tls:
                    break
                data = sock.recv(_READ_SIZE)
        except OSError as error:
            if not _would_block(error):
                raise ConnectionLost(f"lost its connection: {error}") from None
            data = b"."
        if not data:
            raise ConnectionLost("closed the connection")
        try:
            while (reply := reader.gets()) is not False:
                yield reply
        except ErrorReply as error:
            no_redis = f"does not speak the protocol of Redis: {error}"
            raise ConnectionLost(no_redis) from None

    def subscribe(self, channel: str) -> None:
        """Have the messages on a channel among the replies.

        Raises:
            ConnectionLost: The connection is lost, or is full.
        """
        self._write(pack(("SUBSCRIBE", channel)))
        if self.unsent:
            raise ConnectionLost("accepts no more data")

    def close(self) -> None:
        """Close the connection."""
        self.connection.disconnect()

    def disown(self) -> None:
        """Close the copy of a forked child; the parent's stays open."""
        self._finalizer.detach()
        self.sock.close()


def _packed(request: ScriptRequest, sent: set[str]) -> bytes:
    """Return the command, the first time with the source of its script."""
    sha = request.script.sha
    if sha in sent:
        return request.packed()
    sent.add(sha)
    return request.packed_source()


def open_connection(
    address: NodeAddress, timeout: float, *, load_scripts: bool = True
) -> Connection | str:
    """Connect and check the server, blocking; return in words why that failed.

    Args:
        address: Where the server is.
        timeout: Seconds for each step.
        load_scripts: Load our scripts. Off for a server that need not be a node.
    """
    made = _opened(address, timeout, load_scripts=load_scripts)
    return printable_line(made, MOST_TOLD) if isinstance(made, str) else made


def _opened(  # noqa: PLR0911  (one for each kind of failure)
    address: NodeAddress, timeout: float, *, load_scripts: bool
) -> Connection | str:
    import redis  # noqa: F401, PLC0415  (60 ms; see `NodeAddress.connection`)
    from redis.exceptions import (  # noqa: PLC0415
        AuthenticationError,
        RedisError,
        TimeoutError,  # noqa: A004
    )

    connection = None
    try:
        connection = address.connection(timeout)
        connection.connect()
        connection.send_command("INFO", "server")
        server = _fields(connection.read_response())
        connection.send_command("INFO", "replication")
        replication = _fields(connection.read_response())
        connection.send_command("INFO", "memory")
        memory = _fields(connection.read_response())
        has_scripts = load_scripts and _load_scripts(connection)
        facts = facts_of(server, replication, memory)
        made = Connection(connection, facts, has_scripts=has_scripts)
        connection = None
        return made  # noqa: TRY300  (only one that could not be made is closed below)
    except AuthenticationError as error:
        return next(
            (t for sign, t in _NOT_LET_IN.items() if sign in str(error)), REJECTED
        )
    except TimeoutError as error:
        if "handshake" in str(error.__context__):
            return _NO_TLS_ANSWER.format(timeout=timeout)
        if "reading from" in str(error):
            return NO_ANSWER.format(timeout=timeout)
        return f"did not accept a connection within {timeout:g} s"
    except (RedisError, OSError, ValueError) as error:
        if "refused" in str(error).lower():
            return "refused the connection"
        if command := unknown_command(str(error)):
            return DOES_NOT_KNOW + command
        if fault := _known_fault(address, error):
            return fault
        # redis-py wraps the system's error in words about hosts and numbers.
        cause = error if isinstance(error, OSError) else error.__context__
        words = cause.strerror if isinstance(cause, OSError) else ""
        return f"cannot be connected to: {(words or str(error)).rstrip('.')}"
    finally:
        if connection is not None:
            with contextlib.suppress(RedisError, OSError):
                connection.disconnect()


def _known_fault(address: NodeAddress, error: Exception) -> str:
    """Return fact and remedy of a known error, in a clause; else ``""``."""
    if isinstance(error.__context__, socket.gaierror):
        return _UNKNOWN_HOST
    text = str(error)
    if option := _unreadable_option(address):
        return _UNREADABLE.format(option=option)
    told = (told for sign, told in _KNOWN.items() if re.search(sign, text))
    if known := next(told, ""):
        return known
    was_closed = re.search(_CLOSED, text, re.IGNORECASE)
    return _CLOSED_BY.get(address.url.scheme, "") if was_closed else ""


def _unreadable_option(address: NodeAddress) -> str:
    """Return the option of a URL for TLS whose file cannot be read, or ``""``."""
    options = parse_qs(urlsplit(address.url.reveal()).query)
    for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if not all(os.access(path, os.R_OK) for path in options.get(option, ())):
            return option
    return ""


_IF_PLAIN = "write redis:// in its URL if it is a Redis without TLS"
# Sign in the text of the error -> fact and remedy.
_KNOWN = {
    "WRONG_VERSION_NUMBER|wrong version number|record layer failure": (
        f"does not speak TLS at this port; {_IF_PLAIN}, else correct the port"
    ),
    "CERTIFICATE_VERIFY_FAILED.*(mismatch|is not valid for)": (
        "has a certificate for another name; write a name that is in its "
        "certificate into redlock_nodes"
    ),
    "CERTIFICATE_VERIFY_FAILED.*expired": (
        "has a certificate that has expired; renew it, or check this machine's clock"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "has a certificate whose authority is not known here; name the file of the "
        "authority in its URL: rediss://...?ssl_ca_certs=/path/to/ca.pem"
    ),
    "(?i)alert certificate expired": (
        "refuses the certificate of this client, which has expired; renew it, or check "
        "the clock of the node"
    ),
    "(?i)alert certificate required": (
        "wants a certificate of this client; name its files in the URL of the node: "
        "rediss://...?ssl_certfile=/path/to/cert.pem&ssl_keyfile=/path/to/key.pem"
    ),
    "(?i)alert (unknown ca|bad certificate|certificate unknown|certificate revoked)": (
        "does not trust the certificate of this client; correct ssl_certfile and "
        "ssl_keyfile in its URL, or tls-ca-cert-file of the node"
    ),
    "(?i)key.(values|type).mismatch": (
        "cannot be used with a key that belongs to another certificate; correct "
        "ssl_certfile and ssl_keyfile in its URL"
    ),
    "(?i)PEM.lib|no.certificate.or.crl.found": (
        "cannot be used with a file that has no certificate or no key, or a key of "
        "another password; correct the files of ssl_ca_certs, ssl_certfile and "
        "ssl_keyfile in its URL, and ssl_password"
    ),
    "the key needs a password": (  # see `NodeAddress.connection`
        "cannot be used with a key that needs a password; add ssl_password to its URL"
    ),
    "DB index is out of range": (
        "has no database with this number; write a lower number at the end of its "
        "URL, such as /0, or raise `databases` in redis.conf"
    ),
    # It runs. A restart loses its locks, so "start it" would do harm.
    "max number of clients": (
        "accepts no more clients (max number of clients reached); end clients that "
        "are not needed, and raise maxclients. Do not restart it: that loses its locks"
    ),
    "loading the dataset": (
        "loads its data from its disk; wait until it has: its log says how far it is"
    ),
    "busy running a script": BUSY,
    "protected mode": (
        "lets only clients of its own machine in (protected mode); give it a password, "
        "as in requirepass, and write that into redlock_nodes"
    ),
    "Protocol error, got|Protocol Error": (
        "does not speak the protocol of Redis; correct the host and the port in "
        "redlock_nodes: another server listens there"
    ),
}
_NO_CREDENTIALS = (
    "asks for a password; write it into redlock_nodes, as in "
    "redis://:password@host:6379/0"
)
# What Redis says of credentials -> fact and remedy.
_NOT_LET_IN = {
    "Authentication required": _NO_CREDENTIALS,
    "must be called with the client already authenticated": _NO_CREDENTIALS,
    # Redis does not tell which it is.
    "disabled": f"{REJECTED}, or switch that user on (ACL SETUSER ... on)",
}
_UNKNOWN_HOST = (
    "has a host name that this machine does not know; correct it in redlock_nodes, or "
    "check the name service"
)
# TLS 1.2 says "handshake failure" if it wants a certificate. TLS 1.3 says so only
# after the handshake: the first command may meet a connection that is closed already.
_CLOSED = (
    "reset by peer|closed by server|EOF occurred|broken pipe|alert handshake failure"
)
_CLOSED_BY = {  # scheme: fact and remedy
    "redis": (
        "closed the connection at the first command; write rediss:// in its URL if the "
        "port expects TLS, correct the port if another server listens there, else look "
        "into its log"
    ),
    "rediss": (
        "closed the TLS connection; it may want a certificate of this client, or "
        "refuse the one that it got: name a valid one in its URL (ssl_certfile and "
        "ssl_keyfile), correct the port if another server listens there, else look "
        "into its log"
    ),
}
_UNREADABLE = (
    "cannot be used, as the file of {option} cannot be read; correct that option in "
    "its URL, or the rights of the file"
)
NO_ANSWER = (
    "accepts connections, but did not answer within {timeout:g} s; see whether its "
    "process is stopped, is busy or swaps. Do not restart it: that loses its locks"
)
_NO_TLS_ANSWER = (
    f"did not answer as a TLS server within {{timeout:g}} s; {_IF_PLAIN}, else see "
    "whether its process is stopped, is busy or swaps. Do not restart it: that loses "
    "its locks"
)
NOT_YET = "is not connected yet"
NO_TLS_YET = f"{NOT_YET}; {_IF_PLAIN}"


def _load_scripts(connection: AbstractConnection) -> bool:
    """Load the scripts, so that even the first vote of a node comes in time.

    Returns:
        Whether the server has them all.
    """
    import redis  # noqa: F401, PLC0415  (60 ms; see `NodeAddress.connection`)
    from redis.exceptions import ResponseError  # noqa: PLC0415

    for script in ALL_SCRIPTS:
        connection.send_command("SCRIPT", "LOAD", script.source)
    loaded = []
    for _ in ALL_SCRIPTS:
        with contextlib.suppress(ResponseError):  # not allowed: EVAL brings them
            loaded.append(connection.read_response())
    return all(script.sha.encode() in loaded for script in ALL_SCRIPTS)


def _fields(info: Any) -> dict[str, str]:
    if not isinstance(info, bytes):
        raise ValueError("Protocol Error: no text")  # noqa: TRY004  (it is a reply)
    return fields_of(info.decode(errors="replace"))


def facts_of(
    server: Mapping[str, str], replication: Mapping[str, str], memory: Mapping[str, str]
) -> NodeFacts:
    """Return the facts in these sections of a reply to INFO."""
    unfit = server.get("unfit", "")
    policy = memory.get("maxmemory_policy", "noeviction")
    evicts = policy != "noeviction" and memory.get("maxmemory", "0") != "0"
    mode = server.get("redis_mode") or server.get("server_mode", "standalone")  # Valkey
    if mode == "cluster":
        unfit = "belongs to a Redis Cluster; use independent masters"
    elif mode != "standalone":
        unfit = f"runs in {mode} mode; use an independent master"
    elif replication.get("role", "master") != "master":
        primary = f"{replication.get('master_host')}:{replication.get('master_port')}"
        unfit = f"is a replica of {primary}; use independent masters"
    elif evicts:
        unfit = may_evict(policy)
    return NodeFacts(server.get("run_id", ""), unfit)


def _would_block(error: OSError) -> bool:
    """Tell whether the socket only says "not now", in plain or in TLS errors."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in (
        "SSLWantReadError",
        "SSLWantWriteError",
    )
