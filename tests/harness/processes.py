"""Workers, beats and redis-servers of this machine, as pytest-celery's containers.

pytest-celery's nodes call ``status``, ``logs``, ``ready``, ``kill``, ``restart`` and a
few more methods of a container. Here the container is a local process.
"""

from __future__ import annotations

import secrets
import signal as signals
from typing import Any, ClassVar

import celery
import psutil

from celery_redlock.devnodes import DevNode, ServerOptions
from celery_redlock.devnodes.processes import Process
from tests.harness.commands import Beat, Worker
from tests.harness.waiting import until

_ENDING = {signals.SIGTERM, signals.SIGQUIT, signals.SIGINT}


def is_alive(pid: int) -> bool:
    """Tell whether this process runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below this one."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


class LocalProcess(Process):
    """A process with the interface of a container.

    Attributes:
        id: A random name.
        started: All processes that were started and not torn down.
    """

    started: ClassVar[list[LocalProcess]] = []

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.id = secrets.token_hex(16)

    def start(self) -> None:
        """Start it; ``ready`` waits until it can be used."""
        super().start()
        if self not in self.started:
            self.started.append(self)

    @property
    def status(self) -> str:
        """Docker's word: running or exited."""
        return "running" if self.is_running else "exited"

    def ready(self) -> bool:
        """Wait until it says that it is ready."""
        self.wait_until_ready()
        return True

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Send a signal: SIGKILL to the whole group, all others to the leader.

        After a signal that ends it, wait for the process and its children.
        """
        number = getattr(signals, signal) if isinstance(signal, str) else signal
        if number == signals.SIGKILL:
            super().kill()
        else:
            self.signal(number)
        if number == signals.SIGKILL or number in _ENDING:
            self.wait()

    def restart(self) -> None:
        """End it if it runs, start it again and wait until it is ready."""
        if self.is_running:
            self.kill("SIGTERM")
        self.start()
        self.ready()

    def reload(self) -> None:
        """Do nothing: this object caches nothing."""

    def teardown(self) -> None:
        """End it and all its children, paused or not."""
        Process.kill(self)
        if self in self.started:
            self.started.remove(self)

    def count(self, text: str) -> int:
        """Return the number of lines of its log that contain this text."""
        return sum(text in line for line in self.logs().splitlines())

    def until_logged(self, text: str) -> None:
        """Wait until its log contains this text."""
        until(lambda: text in self.logs(), 20.0, what=f"{self.name}: {text!r}")


class LocalBeat(LocalProcess, Beat):
    """A Celery beat."""


class LocalWorker(LocalProcess, Worker):
    """A Celery worker, as pytest-celery's worker container."""

    def __init__(self, app: str, name: str, **options: Any) -> None:
        host = secrets.token_hex(6)
        super().__init__(app, name, host=host, **options)
        self.id = host  # as CeleryTestWorker.hostname()
        self.node_name = f"{name}@{host}"

    def worker_name(self) -> str:
        """Return its node name before the ``@``."""
        return self.name

    def worker_queue(self) -> str:
        """Return the queue that it consumes."""
        return "celery"

    def log_level(self) -> str:
        """Return its log level."""
        return "INFO"

    def version(self) -> str:
        """Return the version of Celery."""
        return str(celery.__version__)


class RedisServer(DevNode):
    """A redis-server as broker or result backend, with 256 databases.

    Args:
        binary: The redis-server.
        **config: More directives of its redis.conf, with ``_`` for ``-``.
    """

    def __init__(self, binary: str | None = None, **config: str) -> None:
        directives = {name.replace("_", "-"): text for name, text in config.items()}
        options = ServerOptions(config={"databases": "256", **directives})
        super().__init__(binary=binary, options=options)

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """The same facts as of pytest-celery's own Redis container."""
        return {
            "url": self.url,
            "host_url": self.url,
            "hostname": "127.0.0.1",
            "port": self.port,
            "vhost": "0",
        }
