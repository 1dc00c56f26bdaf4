"""A member of an etcd cluster: its JSON gateway, over one connection that is kept.

Each method of etcd is a POST of a JSON object; bytes in it are base64. Source:
https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/

A connection on which a request fails is closed, and never used again. The next request
makes another one.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from functools import lru_cache
from http.client import (
    BAD_REQUEST,
    INTERNAL_SERVER_ERROR,
    OK,
    HTTPException,
    HTTPResponse,
    IncompleteRead,
)
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.stores.connection import (
    IS_BUSY,
    NOT_ACCEPTED,
    StoreError,
)
from celery_redlock.stores.server_clock import ServerClock

if TYPE_CHECKING:
    from collections.abc import Mapping

_API = "/v3"
_CANCELED = 408, 499  # by a member that stops: whether it was done is not known
_READ_SIZE = 1 << 16  # more than a record of TLS has
_UNREACHABLE = "it cannot be reached"
LATE = "it did not answer in time"
_NO_HTTP = "it speaks no HTTP; is this the port for clients of etcd?"
_NO_ETCD = (
    "correct the port in redlock_nodes if another server listens there, else look into "
    "the log of etcd, or of a proxy before it"
)
_PLAIN = ("UNEXPECTED_EOF", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_NO_TLS = (
    "it closes TLS connections; if it speaks no TLS, write etcd:// in redlock_nodes"
)
_SILENT_TLS = (
    "it did not answer as a TLS server in time; write etcd:// in redlock_nodes if it "
    f"speaks no TLS, {IS_BUSY}"
)
_UNTRUSTED = "TLS failed: its certificate is not trusted, or it does not trust ours"
_CLOSES_TLS = (
    "it closes the TLS connection, as it may want a certificate of this client, or "
    "refuse the one that it got; name the files of a valid one in redlock_nodes: "
    "etcds://...?cert=/path/to/cert.pem&key=/path/to/key.pem"
)
_CLOSES_PLAIN = (
    "it closes the connection at the first request; if it speaks TLS, write etcds:// "
    "in redlock_nodes"
)
# Sign in the text of an error of TLS -> fact and remedy.
_TLS_FAULTS = {
    "CERTIFICATE_VERIFY_FAILED.*(mismatch|is not valid for)": (
        "its certificate is for another name; write a name that is in its certificate "
        "into redlock_nodes"
    ),
    "CERTIFICATE_VERIFY_FAILED.*expired": (
        "its certificate has expired; renew it, or check this machine's clock"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "its certificate is from an authority that is not known here; name the file of "
        "the authority in redlock_nodes: etcds://...?ca=/path/to/ca.pem"
    ),
    "(?i)alert": _CLOSES_TLS,
}


class MemberError(Exception):
    """A member did not do what it was asked for. The text says why.

    Attributes:
        is_up: Whether something speaks HTTP there, so that it may answer soon.
        is_broken: Whether the connection broke, and not because of a time limit.
        is_refused: Whether it said that the request is wrong, so that it was not done.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_up: bool = False,
        is_broken: bool = False,
        is_refused: bool = False,
    ) -> None:
        super().__init__(reason)
        self.is_up, self.is_broken, self.is_refused = is_up, is_broken, is_refused


class EtcdMember:
    """A connection to a member, and its clock.

    Args:
        host, port: Where it serves clients.
        timeout: In seconds, for a connection and for each part of a reply.
        tls: How to speak TLS with it; None: without.

    Attributes:
        name: Its host and port.
        clock: What it says of its time.
        is_time_right: Whether its last reply agrees with what was known of its time.
        connects: How often it was connected to.
    """

    def __init__(
        self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None
    ) -> None:
        self._where, self.name = (host.strip("[]"), port), f"{host}:{port}"
        self._timeout, self._tls = timeout, tls
        self._sock: socket.socket | None = None
        self._watch: Watch | None = None
        self._is_interrupted, self._pid = False, os.getpid()
        self.clock = ServerClock()
        self.is_time_right = True
        self.connects = 0

    def ask(
        self, path: str, body: Mapping[str, Any], token: str, *, once: bool
    ) -> dict[str, Any]:
        """Send a request, return the reply, and learn the time.

        Args:
            path: The method, such as ``/kv/txn``.
            body: The request.
            token: Of our user, or ``""``.
            once: Send it on the connection that is kept, and on no other one. Else it
                is sent again if the member has closed that, as when it has restarted.

        Raises:
            MemberError: There is no such reply. It may be done nevertheless.
            StoreError: The reply does not tell the time, or another thread has
                interrupted us.
        """
        data = json.dumps(body, separators=(",", ":")).encode()
        is_kept = self._sock is not None
        if once and not is_kept:
            raise MemberError(_UNREACHABLE, is_broken=True)
        try:
            status, text = self._exchange("POST", _API + path, data, token)
        except MemberError as error:
            if once or not is_kept or not error.is_broken:
                raise
            status, text = self._exchange("POST", _API + path, data, token)
        if status != OK:
            raise _refusal(status, text)
        try:
            reply: dict[str, Any] = json.loads(text)
        except ValueError:
            raise MemberError(_NO_HTTP) from None
        return reply

    def metrics(self) -> str:
        """Return the metrics; ``""`` if the member does not tell them here."""
        try:
            status, text = self._exchange("GET", "/metrics", b"", "")
        except MemberError:
            return ""
        return text.decode(errors="replace") if status == OK else ""

    def _exchange(
        self, method: str, path: str, data: bytes, token: str
    ) -> tuple[int, bytes]:
        sock = self._sock
        is_first = sock is None
        try:
            if sock is None:
                sock = self._sock = self._connect()
                self.connects += 1
            self._check_interrupted()  # now that the other thread finds the socket
            sent_at = SYSTEM_CLOCK.monotonic()
            line = f"{method} {path} HTTP/1.1"
            with self._sent(sock, line, data, token) as response:
                text = response.read()
        except BaseException as error:
            self.close()
            if is_first and isinstance(error, (ConnectionResetError, ssl.SSLEOFError)):
                told = _CLOSES_TLS if self._tls else _CLOSES_PLAIN
                raise MemberError(told, is_broken=True) from None
            if isinstance(error, (OSError, HTTPException)):
                raise _failure(error) from None
            raise
        received_at = SYSTEM_CLOCK.monotonic()
        if response.will_close:
            self.close()
        second = _second(response.headers.get("Date", ""))
        if second is None:
            told = "sends no Date, so its time is unknown; is there a proxy?"
            raise StoreError(told)
        self.is_time_right = self.clock.observe(
            sent_at, received_at, second, second + 1
        )
        return response.status, text

    def _check_interrupted(self) -> None:
        if self._is_interrupted:
            told = "was not asked any more: the connection is closed"
            raise StoreError(told)

    def _connect(self) -> socket.socket:
        """Return a new connection.

        Raises:
            MemberError: The member does not accept it.
        """
        try:
            sock = socket.create_connection(self._where, self._timeout)
        except TimeoutError:
            raise MemberError(f"it {NOT_ACCEPTED}", is_up=True) from None
        except OSError as error:
            raise _failure(error) from None
        except ValueError:  # a host that no DNS can know
            raise MemberError(_UNREACHABLE) from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._secured(sock, self._tls) if self._tls else sock
        except OSError as error:
            raise _failure(error) from None

    def _secured(self, sock: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        try:
            return tls.wrap_socket(sock, server_hostname=self._where[0])
        except (ssl.SSLEOFError, ConnectionResetError):
            raise MemberError(_NO_TLS) from None
        except TimeoutError:
            raise MemberError(_SILENT_TLS, is_up=True) from None
        except ssl.SSLError as error:
            is_plain = any(sign in str(error) for sign in _PLAIN)
            raise MemberError(_NO_TLS if is_plain else _tls_fault(error)) from None

    def _sent(
        self, sock: socket.socket, line: str, data: bytes, token: str
    ) -> HTTPResponse:
        """Send a request in one piece. Return the reply, of which the head is read."""
        host, port = self._where
        head = (
            f"{line}\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n"
        )
        if token:
            head += f"Authorization: {token}\r\n"
        # What does not let us speak may have said why, before it closed.
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(f"{head}\r\n".encode() + data)
        response = HTTPResponse(sock, method=line.partition(" ")[0])
        try:
            response.begin()
        except BaseException:
            response.close()  # or it keeps the socket open
            raise
        return response

    def watch(self, body: Mapping[str, Any], token: str) -> Watch:
        """Watch keys, on a connection of its own.

        Raises:
            MemberError: It does not let us.
        """
        sock = self._connect()
        try:
            # With HTTP 1.0 the reply has no chunks: each line of it is a result.
            line = f"POST {_API}/watch HTTP/1.0"
            response = self._sent(sock, line, json.dumps(body).encode(), token)
            refusal = b"" if response.status == OK else response.read()
        except BaseException as error:
            sock.close()
            if isinstance(error, (OSError, HTTPException)):
                raise _failure(error) from None
            raise
        if response.status != OK:
            sock.close()
            raise _refusal(response.status, refusal)
        self._watch = Watch(sock, response)
        return self._watch

    def interrupt(self) -> None:
        """End the wait of another thread, which then closes the connections.

        In a forked child it does nothing: the connections are also the parent's.
        """
        if self._pid != os.getpid():
            return
        self._is_interrupted = True
        watched = self._watch.socket if self._watch else None
        for sock in (self._sock, watched):
            if sock is not None:
                with suppress(OSError):  # past TLS, which another thread uses
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        sock, self._sock = self._sock, None
        if sock:
            sock.close()


class Watch:
    """A stream of what changes; the first result says that it has begun.

    Attributes:
        socket: Can be read when there is something to `read`.
    """

    def __init__(self, sock: socket.socket, response: HTTPResponse) -> None:
        self.socket = sock
        self._response = response
        self._data = b""

    def read(self) -> list[dict[str, Any]]:
        """Wait for results, and return all that have come.

        Raises:
            MemberError: The connection is lost, or the member has ended the watch.
        """
        try:
            # What is buffered, or else what one call of `recv` returns: all that is
            # decrypted, so that nothing is left which the socket would not tell of.
            data = self._response.read1(_READ_SIZE)
        except (OSError, HTTPException) as error:
            raise _failure(error) from None
        if not data:
            raise MemberError(_UNREACHABLE, is_broken=True)
        *lines, self._data = (self._data + data).split(b"\n")
        results = [json.loads(line).get("result") for line in lines]
        if any(result is None or "canceled" in result for result in results):
            raise MemberError("it has ended our watch")
        return results

    def close(self) -> None:
        """End it."""
        self._response.close()
        self.socket.close()


def tls_of(files: Mapping[str, str]) -> ssl.SSLContext:
    """Return how to speak TLS with the files that the options of a URL name.

    Raises:
        StoreError: A file has no certificate, or another key than its certificate.
    """
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files["key"], password=_no_password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", "") or str(error)
        raise StoreError(
            f"cannot be used with these certificates ({reason}); correct the files of "
            "its options ca, cert and key"
        ) from None
    return context


def _no_password() -> str:
    """Refuse a key that needs a password, which OpenSSL would ask the terminal for."""
    raise ValueError("the key needs a password")


def _failure(error: Exception) -> MemberError:
    """Return the `MemberError` for an error of a connection."""
    if isinstance(error, TimeoutError):
        return MemberError(LATE, is_up=True)
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return MemberError(_tls_fault(error))
    if isinstance(error, (OSError, IncompleteRead)):
        return MemberError(_UNREACHABLE, is_broken=True)
    return MemberError(_NO_HTTP)


def _tls_fault(error: ssl.SSLError) -> str:
    """Return what an error of TLS means, and the remedy."""
    told = (told for sign, told in _TLS_FAULTS.items() if re.search(sign, str(error)))
    return next(told, _UNTRUSTED)


def _refusal(status: int, text: bytes) -> MemberError:
    """Return the `MemberError` for a reply with an HTTP status of an error."""
    try:
        said = json.loads(text)
        reason = str(said.get("message") or said["error"])
    except (ValueError, KeyError, AttributeError):
        first = text.decode(errors="replace").strip().partition("\n")[0][:200]
        reason = f"{f'HTTP {status} {first}'.strip()}; {_NO_ETCD}"
    is_refused = BAD_REQUEST <= status < INTERNAL_SERVER_ERROR
    is_refused = is_refused and status not in _CANCELED
    return MemberError(reason, is_up=True, is_refused=is_refused)


@lru_cache(maxsize=64)
def _second(date: str) -> int | None:
    """Return the seconds since 1970 of a header Date (RFC 9110)."""
    parsed = parsedate_tz(date)
    return None if parsed is None else mktime_tz(parsed)
