"""A server for the page of locks, for a few operators and a health check.

::

    a thread for      reads the request, which is refused if it is not whole in time, or
    each connection   too long ──► takes a slot ──► calls the application with the whole
                      request, and writes the response

So a client that sends slowly takes no slot. If there are too many connections, the
oldest that has not sent its request gives way. ``/healthz`` has slots of its own, so
that viewers who wait for slow nodes do not keep a health check out.

It does not encrypt: see `is_loopback`. Each request leaves a line in the log.

waitress 3.0 in its place would be a dependency for one command, and does not keep a
health check alive: its deadline begins again with each byte, and 120 clients that send
a byte each second keep it from accepting others. Behind a proxy that reads whole
requests each WSGI server will do: it can serve `celery_redlock.web.page`.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import re
import socket
import sys
import threading
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.text import printable

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 32  # requests that are answered
_MOST_CHECKS = 4  # of them for /healthz alone
_MOST_READ = 256  # connections whose request is not whole
_READ_WITHIN = 10.0  # seconds for a whole request
_WRITE_WITHIN = 30.0  # seconds for each part of a response: its head, its body
_MOST_HEAD, _MOST_BODY = 1 << 14, 1 << 17  # bytes
_MOST_SHOWN = 300  # letters of an address in the log

_HEAD = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(.*?)[ \t]*\r?$")
_CHUNKED = re.compile(rb"(?im)^transfer-encoding:")
_CHECK = re.compile(rb"(GET|HEAD) /healthz[ ?]")
_QUIET = re.compile(r"(GET|HEAD) /(healthz|metrics|page\.css|page\.js|icon\.svg)\b")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can connect to this address.

    Raises:
        OSError: The name of the host is unknown.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {str(address[0]).partition("%")[0] for *_, address in found}
    return all(ipaddress.ip_address(one).is_loopback for one in addresses)


def _refusal_status(data: bytes) -> int | None:
    """Return the status with which a request is refused: 0 if it is whole and right.

    None: more bytes of it must come.
    """
    head = _HEAD.search(data)
    if head is None or head.start() > _MOST_HEAD:
        return 431 if len(data) > _MOST_HEAD else None
    names = data[: head.start()]
    lengths = {*_LENGTH.findall(names)} or {b"0"}
    length = lengths.pop()
    if _CHUNKED.search(names):
        return 501
    if lengths or not length.isdigit():
        return 400
    if len(length) > len(str(_MOST_BODY)) or int(length) > _MOST_BODY:
        return 413
    return 0 if len(data) >= head.end() + int(length) else None


def _refuse(sock: socket.socket, address: Any, status: int) -> None:
    """Answer with this status, if the client reads."""
    line = f"HTTP/1.0 {status} {HTTPStatus(status).phrase}\r\nContent-Length: 0\r\n\r\n"
    with contextlib.suppress(OSError):
        sock.send(line.encode())
    log.info("%s: refused with %d: its request.", address[0], status)


class LockServer(ThreadingMixIn, WSGIServer):
    """A server for one WSGI application: call ``serve_forever``, then ``server_close``.

    It listens on this address and port; 0 is a port that is free.

    Attributes:
        url: The address of the page.

    Raises:
        OSError: It cannot listen there.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, application: Any, host: str, port: int) -> None:
        family, _, _, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE - _MOST_CHECKS)
        self._check_slots = threading.BoundedSemaphore(_MOST_CHECKS)
        self._mutex = threading.Lock()
        # Connections whose request is not whole, and their addresses: oldest first.
        self._unread: dict[socket.socket, Any] = {}
        super().__init__((host, port), _Handler)
        self.set_app(application)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self.server_port}/"

    def server_bind(self) -> None:
        """Listen, without the question for our name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = (
            str(self.server_address[0]),
            int(self.server_address[1]),
        )
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection. If there are too many, one gives way."""
        with self._mutex:
            if len(self._unread) >= _MOST_READ:
                oldest = next(iter(self._unread))
                _refuse(oldest, self._unread.pop(oldest), 408)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._unread[request] = client_address
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Read the request and answer it, in the thread."""
        status, data = self._read(request)
        with self._mutex:
            if self._unread.pop(request, None) is None:
                return  # it has given way
        slots = self._check_slots if _CHECK.match(data) else self._slots
        if not status and not slots.acquire(blocking=False):
            status = 503
        if status:
            _refuse(request, client_address, status)
        else:
            try:
                _Handler(data, request, client_address, self)
            finally:
                slots.release()

    def _read(self, sock: socket.socket) -> tuple[int, bytes]:
        """Return a whole request, or the status with which it is refused."""
        data, until = b"", SYSTEM_CLOCK.monotonic() + _READ_WITHIN
        while (status := _refusal_status(data)) is None:
            left = until - SYSTEM_CLOCK.monotonic()
            if left <= 0:
                return 408, data
            sock.settimeout(left)
            with contextlib.suppress(TimeoutError):
                more = sock.recv(1 << 16)
                if not more:
                    raise ConnectionAbortedError("it ended before its request")
                data += more
        return status, data

    def shutdown_request(self, request: Any) -> None:
        """Tell the client that nothing follows, and close the connection."""
        with self._mutex:
            self._unread.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log an error of one connection. A browser that went away is none."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            log.debug("The connection of %s ended: %s.", client_address[0], error)
        else:
            log.error("A request of %s failed.", client_address[0], exc_info=error)


class _Answer(ServerHandler):
    server_software = None  # type: ignore[assignment]

    def log_exception(self, exc_info: Any) -> None:
        log.error("The application failed.", exc_info=exc_info)


class _Handler(WSGIRequestHandler):
    timeout = _WRITE_WITHIN

    def __init__(self, data: bytes, *connection: Any) -> None:
        self._data = data
        super().__init__(*connection)

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(self._data)
        self._began_at = SYSTEM_CLOCK.monotonic()

    def handle(self) -> None:
        self.raw_requestline = self.rfile.readline(_MOST_HEAD + 1)
        if self.parse_request():
            environ, errors = self.get_environ(), self.get_stderr()
            wfile: Any = self.wfile
            answer = _Answer(self.rfile, wfile, errors, environ)
            answer.request_handler = self  # type: ignore[attr-defined]
            answer.run(self.server.get_app())  # type: ignore[attr-defined]

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        # The handler fills up with the environment of the process: no user is in it.
        return {**environ, "REMOTE_USER": ""}

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Server":
            super().send_header(keyword, value)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        line = printable(self.requestline)[:_MOST_SHOWN]
        ms = (SYSTEM_CLOCK.monotonic() - self._began_at) * 1000
        is_quiet = _QUIET.match(line) and str(code) == "200"
        level = logging.DEBUG if is_quiet else logging.INFO
        text = '%s "%s" %s, %s bytes, %.0f ms'
        log.log(level, text, self.client_address[0], line, code, size, ms)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name)
        log.debug(format, *args)
