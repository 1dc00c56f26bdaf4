"""RabbitMQ and PostgreSQL on loopback, for as long as the tests run."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.errors import RedlockError

__all__ = ["PostgreSQL", "RabbitMQ", "find_postgresql", "find_rabbitmq"]


class RabbitMQ(Process):
    """A RabbitMQ with one node, and with a port mapper (epmd) of its own.

    Args:
        folder: The folder of its data and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.port, distribution, mapper = (free_port() for _ in range(3))
        address = {"ERL_EPMD_PORT": str(mapper), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._mapper = Process(
            "epmd",
            ["epmd", "-port", str(mapper), "-address", "127.0.0.1"],
            log=folder / "epmd.log",
            environment=address,
        )
        home = folder / "rabbitmq"
        home.mkdir()
        (home / "plugins").write_text("[].")
        (home / "env").touch()
        super().__init__(
            "rabbitmq",
            [find_rabbitmq()],
            log=folder / "rabbitmq.log",
            ready="Server startup complete",
            environment={
                **address,
                "HOME": str(home),
                "RABBITMQ_NODENAME": f"tests-{secrets.token_hex(4)}@localhost",
                "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODE_PORT": str(self.port),
                "RABBITMQ_DIST_PORT": str(distribution),
                "RABBITMQ_MNESIA_BASE": str(home / "data"),
                "RABBITMQ_LOG_BASE": str(home / "log"),
                "RABBITMQ_LOGS": "-",
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
                "RABBITMQ_CONFIG_FILE": str(home / "none"),
                "RABBITMQ_CONF_ENV_FILE": str(home / "env"),
            },
        )

    @property
    def url(self) -> str:
        """The URL of the broker."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> None:
        """Start it and return when it takes connections."""
        self._mapper.start()
        super().start()
        self.wait_until_ready()

    def stop(self) -> None:
        """End it and its port mapper."""
        self.kill()
        self._mapper.kill()


def find_rabbitmq() -> str:
    """Return the path of rabbitmq-server.

    Debian's program on PATH is a wrapper that changes to another user.

    Raises:
        FileNotFoundError: There is none.
    """
    own = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    found = own if Path(own).exists() else shutil.which("rabbitmq-server")
    if not found:
        message = "rabbitmq-server is not installed (Debian: rabbitmq-server)"
        raise FileNotFoundError(message)
    return found


_PORT_TRIES = 5
_USER = "redlock"
# Its data ends with the tests, so it need not survive a crash.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "synchronous_commit": "off",
    "unix_socket_directories": "",
}


class PostgreSQL(Process):
    """A PostgreSQL with an empty database and a user with all rights in it.

    PostgreSQL refuses to run as root; then it runs as ``postgres`` or as ``nobody``.

    Args:
        programs: The folder with ``initdb`` and ``postgres``.
        **settings: More of the server's settings.
    """

    def __init__(self, programs: Path, **settings: str) -> None:
        self._settings = {**_SETTINGS, **settings}
        self._folder = Path(tempfile.mkdtemp(prefix="redlock-postgres-"))
        self._programs = programs
        user = _unprivileged() if os.geteuid() == 0 else {}
        if user:
            shutil.chown(self._folder, user["user"], user["group"])
        self._as_user = {"cwd": self._folder, **user}
        self.port = 0
        super().__init__(
            "postgresql",
            [],
            log=self._folder / "log",
            ready="database system is ready to accept connections",
            **self._as_user,
        )

    @property
    def url(self) -> str:
        """The URL in SQLAlchemy's notation."""
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and return when it answers; create its database before.

        After a `kill` it has the data that it had, and the port.

        Raises:
            RedlockError: The server did not start.
        """
        if self.port:
            super().start()
            self.wait_until_ready()
            return
        data = str(self._folder / "data")
        program, server = str(self._programs / "initdb"), self._programs / "postgres"
        subprocess.run(  # noqa: S603  (the found PostgreSQL)
            [program, "-D", data, "--auth=trust", "--no-sync", f"--username={_USER}"],
            capture_output=True,
            check=True,
            **self._as_user,
        )
        for tries_left in reversed(range(_PORT_TRIES)):
            self.port = free_port()
            settings = {**self._settings, "port": str(self.port)}
            options = [f"--{name}={value}" for name, value in settings.items()]
            self.command = [str(server), "-D", data, *options]
            super().start()
            try:
                self.wait_until_ready()
            except RedlockError:  # another program may have taken the port
                if self.is_running or not tries_left:
                    raise
            else:
                return

    def stop(self) -> None:
        """End it, with or without connections, and remove its data."""
        if self.is_running:
            self.signal(signal.SIGINT)
            try:
                self.wait()
            except RedlockError:
                self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def find_postgresql() -> Path | None:
    """Return the newest folder with PostgreSQL's programs, or None."""
    on_path = shutil.which("initdb")
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = sorted(debian, key=lambda path: float(path.parts[-3]), reverse=True)
    if on_path:
        found.append(Path(on_path).resolve())
    return found[0].parent if found else None


def _unprivileged() -> dict[str, Any]:
    """Return the `subprocess` arguments to run a program as a user without rights."""
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    message = "there is neither a user 'postgres' nor 'nobody' to run PostgreSQL as"
    raise RedlockError(message)
