"""Local processes behind the face of pytest-celery's containers.

pytest-celery's nodes talk to what they call a container: ``status``, ``logs``,
``ready``, ``kill``, ``restart`` and a few more. Here that is a process in a
session (and process group) of its own, so that it can be paused and killed whole.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import celery
import psutil

from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "LocalProcess",
    "LocalRedis",
    "LocalWorker",
    "descendants",
    "free_port",
    "is_alive",
]

LAUNCHER = Path(__file__).with_name("launch.py")


# Below those that the system gives to outgoing connections: a client that knocks
# at a dead server's port there can end up being answered by itself.
_PORTS = range(10_000, 15_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listened a moment ago."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def is_alive(pid: int) -> bool:
    """Tell whether this process runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below this one."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


class LocalProcess:
    """A process that looks like a container.

    Attributes:
        name: What it is called in failures.
        id: Unlike any other's.
        everyone: All that were started by this test run and not torn down.
    """

    ready_prompt: ClassVar[str]
    everyone: ClassVar[list[LocalProcess]] = []

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.id = secrets.token_hex(16)
        self.log = folder / f"{name}-{self.id[:6]}.log"
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0  # where in the log the present process begins

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return the variables that it gets beside ours."""
        return {}

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """What others need to know to talk to it."""
        return {}

    # -- A container's face ------------------------------------------------

    def start(self) -> None:
        """Start it; ``ready`` waits until it can be used."""
        self._started_at = len(self.logs())
        launch = [sys.executable, str(LAUNCHER), str(os.getpid()), *self.command()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (our own command)
                launch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )
        if self not in self.everyone:
            self.everyone.append(self)

    @property
    def pid(self) -> int:
        """The process id; of a worker that of its main process."""
        if self._process is None:
            message = f"{self.name} was not started"
            raise RuntimeError(message)
        return self._process.pid

    @property
    def status(self) -> str:
        """As Docker says it: running or exited."""
        running = self._process is not None and self._process.poll() is None
        return "running" if running else "exited"

    def logs(self) -> str:
        """Return all that it and its predecessors printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def ready(self, seconds: float = 30.0) -> bool:
        """Wait until it says that it is ready."""

        def is_ready() -> bool:
            if self.status == "exited":
                message = f"{self.name} ended while starting:\n{self.logs()}"
                raise RuntimeError(message)
            return self.ready_prompt in self.logs()[self._started_at :]

        return until(is_ready, seconds, what=f"{self.name} to be ready")

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Send a signal: SIGKILL to the whole group, all others to the leader.

        After SIGKILL, SIGTERM, SIGQUIT and SIGINT it is waited for.
        """
        number = _signal(signal)
        if number == _signal("SIGKILL"):
            self._signal_group(number)
        else:
            os.kill(self.pid, number)
        if number in map(_signal, ("SIGKILL", "SIGTERM", "SIGQUIT", "SIGINT")):
            self.wait()

    def wait(self, seconds: float = 30.0) -> None:
        """Wait until the process has ended, and its children with it."""
        until(lambda: self.status == "exited", seconds, what=f"the end of {self.name}")
        until(
            lambda: not self._group_is_alive(), seconds, what=f"{self.name}'s children"
        )

    def pause(self) -> None:
        """Stop the whole group, as ``docker pause`` does."""
        self._signal_group(signal.SIGSTOP)

    def unpause(self) -> None:
        """Let the whole group go on."""
        self._signal_group(signal.SIGCONT)

    def restart(self, timeout: float = 30.0) -> None:
        """End it if it runs, start it anew and wait until it is ready."""
        if self.status == "running":
            self.kill("SIGTERM")
        self.start()
        self.ready(timeout)

    def reload(self) -> None:
        """Nothing is cached here."""

    def teardown(self) -> None:
        """End it and all its children, in whatever state they are."""
        if self._process is None:
            return
        self._signal_group(signal.SIGKILL)
        self._process.wait()
        if self in self.everyone:
            self.everyone.remove(self)

    # -- Its group ---------------------------------------------------------

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _group_is_alive(self) -> bool:
        return any(is_alive(pid) for pid in self._group())

    def _group(self) -> Iterator[int]:
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == self.pid:
                    yield pid


def _signal(name: str | int) -> int:
    return int(getattr(signal, name) if isinstance(name, str) else name)


class LocalRedis(LocalProcess):
    """A redis-server on loopback that keeps nothing on disk."""

    ready_prompt = "Ready to accept connections"

    def __init__(self, folder: Path, name: str, binary: str) -> None:
        super().__init__(folder, name)
        self.binary = binary
        self.port = free_port()

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "databases": 256,
        }
        flags = [text for key, value in options.items() for text in (f"--{key}", value)]
        return [self.binary, *map(str, flags)]

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """As pytest-celery's own Redis container says it."""
        url = f"redis://127.0.0.1:{self.port}/0"
        return {
            "url": url,
            "host_url": url,
            "hostname": "127.0.0.1",
            "port": self.port,
            "vhost": "0",
        }


class LocalWorker(LocalProcess):
    """A Celery worker.

    Args:
        folder: Where its log goes.
        name: Its node name, before the ``@``.
        app: What follows ``celery -A``.
        pool: As of ``celery worker --pool``.
        concurrency: Processes, threads or greenlets.
        environment: Variables that the app reads.
        options: More of the command line.
    """

    ready_prompt = " ready."

    def __init__(  # noqa: PLR0913  (each of them differs between tests)
        self,
        folder: Path,
        name: str,
        *,
        app: str,
        pool: str = "prefork",
        concurrency: int = 4,
        environment: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, name)
        self.app = app
        self.pool = pool
        self.concurrency = concurrency
        self.options = options
        self._environment = environment

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        return [
            *(sys.executable, "-m", "celery", "-A", self.app, "worker"),
            *("-n", self.node_name, "-P", self.pool, "-c", str(self.concurrency)),
            *("-l", self.log_level(), "--without-gossip", "--without-mingle"),
            *self.options,
        ]

    def environment(self) -> Mapping[str, str]:
        """Return the variables that it gets beside ours."""
        return {"PYTHONUNBUFFERED": "1", **self._environment}

    @property
    def node_name(self) -> str:
        """Its name for ``inspect`` and ``control``."""
        return f"{self.name}@{self.id[:12]}"  # as CeleryTestWorker.hostname()

    def worker_name(self) -> str:
        """Return its node name, before the ``@``."""
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
