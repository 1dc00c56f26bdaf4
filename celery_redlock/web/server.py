"""A server for the page of locks: the standard library's, with a thread per request.

It is for operators, so it serves a few requests at once, and ends connections on which
nothing comes. It does not encrypt: see `is_loopback`.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import sys
import threading
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

__all__ = ["LockServer", "is_loopback"]

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 64  # requests
_PATIENCE = 30.0  # seconds for which a connection may be silent


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can connect to this address.

    Raises:
        OSError: The name of the host is unknown.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {str(address[0]).partition("%")[0] for *_, address in found}
    return all(ipaddress.ip_address(one).is_loopback for one in addresses)


class LockServer(ThreadingMixIn, WSGIServer):
    """A server for one WSGI application: call ``serve_forever``, then ``server_close``.

    Args:
        application: The application.
        host: The address to listen on.
        port: The port; 0 for a free one.

    Attributes:
        url: The address of the page.

    Raises:
        OSError: It cannot listen there.
    """

    daemon_threads = True

    def __init__(self, application: Any, host: str, port: int) -> None:
        family, _, _, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
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
        """Answer in a thread of its own; close the connection if there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread has started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log an error of one connection. A browser that went away is none."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            log.debug("The connection of %s ended: %s.", client_address[0], error)
        else:
            log.error("A request of %s failed.", client_address[0], exc_info=error)


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE
    server_version, sys_version = "celery-redlock", ""

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        # The handler fills up with the environment of the process: no user is in it.
        return {**environ, "REMOTE_USER": ""}

    def get_stderr(self) -> Any:
        return _ErrorLog()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name)
        log.debug(format, *args)


class _ErrorLog:
    """A file for the errors of the application, which the handler writes."""

    def write(self, text: str) -> int:
        if text.strip():
            log.error("%s", text.rstrip())
        return len(text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def flush(self) -> None: ...
