"""Brokers that remember what they took, over any crash: Redis and RabbitMQ."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import redis

from celery_redlock.devnodes import find_redis_server
from tests.worker.harness.processes import LocalProcess, LocalRedis, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["BROKERS", "DurableRedis", "Rabbit", "find_rabbit"]


class DurableRedis(LocalRedis):
    """A redis-server that writes down each command before it answers."""

    # Seconds; a long pause looks like a death.
    options: ClassVar[dict[str, Any]] = {
        "visibility_timeout": 10,
        "unacked_mutex_expire": 5,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "broker", find_redis_server())

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        durable = {
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": 0,  # the file is evidence; see `dropped`
            "dir": self.folder,
        }
        flags = [text for key, value in durable.items() for text in (f"--{key}", value)]
        return [*super().command(), *map(str, flags)]

    def idles(self) -> bool:
        """Tell whether no message is queued, delayed or being worked on."""
        url = str(self.celeryconfig["url"])
        with redis.Redis.from_url(url, socket_timeout=5, protocol=2) as client:
            return not client.llen("celery") and not client.hlen("unacked")

    def dropped(self) -> set[str]:
        """Return the jobs whose last message was taken and is nowhere any more.

        Celery's Redis transport takes a message off the queue and says in a second
        step that it has it. A worker, a connection or a broker that dies in between
        takes the message along. The broker has written down all it did: the last
        that it did with such a message is that it was put into the queue.
        """
        last: dict[str, bool] = {}
        files = [*self.folder.glob("*.aof"), *self.folder.glob("*/*.incr.aof")]
        for command in itertools.chain.from_iterable(map(_commands, files)):
            if command[0] in (b"LPUSH", b"RPUSH", b"HSET") and len(command) > 2:
                found = _ID.search(command[-1])
                if found:
                    last[found[1].decode()] = command[0] != b"HSET"
        return {job for job, was_queued in last.items() if was_queued}


_ID = re.compile(rb'"id": "([0-9a-f-]{36})"')


def _commands(file: Path) -> Iterator[list[bytes]]:
    """Read an append-only file, up to where it may have been cut off."""
    data, at = file.read_bytes(), 0

    def number() -> int:
        nonlocal at
        end = data.index(b"\r\n", at)
        value, at = int(data[at + 1 : end]), end + 2
        return value

    with contextlib.suppress(ValueError):
        while at < len(data):
            if data[at : at + 1] == b"#":  # an annotation
                at = data.index(b"\r\n", at) + 2
                continue
            words = []
            for _ in range(number()):
                length = number()
                words.append(data[at : at + length])
                at += length + 2
            yield words


class Rabbit(LocalProcess):
    """A RabbitMQ with one node, and with a port mapper (epmd) of its own."""

    ready_prompt = "Server startup complete"
    options: ClassVar[dict[str, Any]] = {"confirm_publish": True}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "broker")
        self.port, self._distribution, mapper = (free_port() for _ in range(3))
        self._mapper = _Mapper(folder, mapper)

    def start(self) -> None:
        """Start it, the mapper first."""
        if self._mapper.status != "running":
            self._mapper.start()
        super().start()

    def teardown(self) -> None:
        """End both."""
        super().teardown()
        self._mapper.teardown()

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        return [find_rabbit()]

    def environment(self) -> Mapping[str, str]:
        """Keep it in its folder, on loopback, without plugins."""
        home = self.folder / "rabbit"
        home.mkdir(exist_ok=True)
        plugins, variables = home / "plugins", home / "env"
        plugins.write_text("[].")
        variables.touch()
        return {
            **self._mapper.environment(),
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"torture-{self.id[:8]}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_CONFIG_FILE": str(home / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(variables),
        }

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """As pytest-celery's own RabbitMQ container says it."""
        return {"url": f"amqp://guest:guest@127.0.0.1:{self.port}//"}

    def idles(self) -> bool:
        """Tell whether it knows of no message: it would be slow to ask."""
        return False

    def dropped(self) -> set[str]:
        """Return the jobs that its transport lost: it loses none."""
        return set()


class _Mapper(LocalProcess):
    """The daemon that tells Erlang nodes of each other."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, "epmd")
        self._port = port

    def command(self) -> Sequence[str]:
        """Return what is to be run; it stays in the foreground."""
        return ["epmd", "-port", str(self._port), "-address", "127.0.0.1"]

    def environment(self) -> Mapping[str, str]:
        """Return what makes others find it."""
        return {"ERL_EPMD_PORT": str(self._port), "ERL_EPMD_ADDRESS": "127.0.0.1"}


BROKERS: dict[str, type[DurableRedis | Rabbit]] = {
    "redis": DurableRedis,
    "rabbitmq": Rabbit,
}


def find_rabbit() -> str:
    """Return the path of rabbitmq-server.

    Debian's on PATH is a wrapper that changes to a user of its own.

    Raises:
        FileNotFoundError: There is none.
    """
    own = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    found = own if Path(own).exists() else shutil.which("rabbitmq-server")
    if not found:
        message = "rabbitmq-server is not installed (Debian: rabbitmq-server)"
        raise FileNotFoundError(message)
    return found
