"""RabbitMQ, PostgreSQL and etcd on loopback, for as long as the tests run."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path

from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.devnodes.stores.etcd import Etcd
from celery_redlock.devnodes.stores.postgresql import PostgreSQL, find_postgresql

__all__ = ["Etcd", "PostgreSQL", "find_postgresql"]  # of the package

_ALARM = "{resource_limit, memory, node()}"


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

    def raise_alarm(self) -> None:
        """Let it block all publishers, as when it is short of memory."""
        self._evaluate(f"rabbit_alarm:set_alarm({{{_ALARM}, []}}).")

    def clear_alarm(self) -> None:
        """Let it take messages again."""
        self._evaluate(f"rabbit_alarm:clear_alarm({_ALARM}).")

    def drop_connections(self) -> None:
        """Let it drop all connections, without a word to the clients."""
        self._evaluate("[exit(P, kill) || P <- rabbit_networking:connections()].")

    def _evaluate(self, erlang: str) -> None:
        self.control("eval", erlang)

    def control(self, *words: str) -> None:
        """Run ``rabbitmqctl`` with these words."""
        program = Path(find_rabbitmq()).with_name("rabbitmqctl")
        subprocess.run(  # noqa: S603  (all words are ours)
            [program, *words],
            env={**os.environ, **self.environment},
            capture_output=True,
            check=True,
        )


def sqlalchemy_url(server: PostgreSQL) -> str:
    """Return the URL of a PostgreSQL in SQLAlchemy's notation."""
    return server.url.replace("postgresql", "postgresql+psycopg")


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
