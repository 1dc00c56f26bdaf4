"""Containers of one test run: Redis servers, lock nodes and workers."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from pytest_celery import CeleryWorkerContainer, RedisContainer

from celery_redlock import Redlock
from celery_redlock.devnodes.processes import free_port
from tests.harness.waiting import until

ROOT = Path(__file__).parents[2]
REDIS = "redis:latest"
_TIMEOUT = 60  # seconds for one request to the engine
_BUILD_TIMEOUT = 240


class DockerEngine:
    """A Docker engine, with a network for the containers of this test run."""

    def __init__(self) -> None:
        self._docker = docker.from_env(timeout=_TIMEOUT)
        self._name = f"redlock-{secrets.token_hex(4)}"
        self._network: Any = None

    def open(self) -> None:
        """Connect to the engine and make the network.

        Raises:
            DockerException: No engine answers.
        """
        self._docker.ping()
        self._network = self._docker.networks.create(self._name, driver="bridge")

    def run(self, image: str, name: str, **options: Any) -> Any:
        """Start a container with this name in the network."""
        return self._docker.containers.run(
            image,
            name=f"{self._name}-{name}",
            hostname=name,
            network=self._name,
            networking_config={
                self._name: self._docker.api.create_endpoint_config(aliases=[name])
            },
            labels=[self._name],
            detach=True,
            **options,
        )

    def unplug(self, container: Any) -> None:
        """Take a container off the network: its packets are lost."""
        self._network.disconnect(container)

    def plug(self, container: Any, name: str) -> None:
        """Put a container on the network again."""
        self._network.connect(container, aliases=[name])

    def build_worker(self, folder: Path) -> str:
        """Build the image of the workers with a wheel of this checkout.

        Returns:
            The id of the image.

        Raises:
            subprocess.SubprocessError: The wheel was not built in time.
            DockerException: The image was not built.
        """
        shutil.copy(Path(__file__).with_name("Dockerfile"), folder)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run(  # noqa: S603  (our own command)
            [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
            check=True,
            timeout=_BUILD_TIMEOUT,
        )
        tag = f"{self._name}-worker"
        image, _ = self._docker.images.build(
            path=str(folder), tag=tag, rm=True, timeout=_BUILD_TIMEOUT
        )
        return str(image.id)

    def clear(self) -> None:
        """Remove the containers and the network."""
        ours = {"label": self._name}
        for container in self._docker.containers.list(all=True, filters=ours):
            with contextlib.suppress(NotFound):
                container.remove(force=True, v=True)
        if self._network is not None:
            self._network.remove()
        with contextlib.suppress(DockerException):
            self._docker.images.remove(f"{self._name}-worker", force=True)
        self._docker.close()


class RedisServer(RedisContainer):
    """A redis-server: containers use its name, this process uses a port.

    Attributes:
        raw: The container of the Docker client.
    """

    def __init__(self, engine: DockerEngine, name: str) -> None:
        self._host_port = free_port()
        self.raw = engine.run(
            REDIS,
            name,
            command=[*self.command(), "--databases", "64"],
            ports={"6379/tcp": ("127.0.0.1", self._host_port)},
        )
        super().__init__(self.raw)

    @property
    def port(self) -> int:
        """The port on this machine; the same after a restart."""
        return self._host_port

    def until_it_answers(self) -> None:
        """Wait until the server answers through its port."""
        client = self.client

        def answers() -> bool:
            with contextlib.suppress(Exception):
                return bool(client.ping())
            return False

        try:
            until(answers, 30, what=f"{self.hostname} to answer")
        finally:
            client.close()


class DockerNode:
    """A lock node with the methods of ``devnodes.DevNode``."""

    def __init__(self, engine: DockerEngine, name: str) -> None:
        self.server = RedisServer(engine, name)
        self.name = name
        self._engine = engine

    @property
    def is_running(self) -> bool:
        """Whether the container runs; a paused one does."""
        self.server.reload()
        return self.server.status in ("running", "paused")

    def pause(self) -> None:
        """``docker pause``."""
        self.server.raw.pause()

    def resume(self) -> None:
        """``docker unpause``."""
        self.server.raw.unpause()

    def kill(self) -> None:
        """``docker kill``."""
        self.server.raw.kill()
        self.server.raw.wait(timeout=_TIMEOUT)

    def restart(self) -> None:
        """``docker start``: it comes back with nothing in its memory."""
        self.server.raw.start()
        self.server.until_it_answers()

    def unplug(self) -> None:
        """Cut it off from all clients, while it goes on running."""
        self._engine.unplug(self.server.raw)

    def plug(self) -> None:
        """Let clients reach it again."""
        self._engine.plug(self.server.raw, self.name)
        self.server.reload()
        self.server.until_it_answers()


class DockerNodes:
    """Lock nodes with the methods of ``devnodes.DevNodes``.

    Attributes:
        nodes: The nodes.
        urls: The URLs for this process.
        inside: The addresses for containers, as in ``redlock_nodes``.
    """

    def __init__(
        self, engine: DockerEngine, count: int, prefix: str, max_ttl: float
    ) -> None:
        names = [f"{prefix}-{number}" for number in range(1, count + 1)]
        self.nodes = [DockerNode(engine, name) for name in names]
        for node in self.nodes:
            node.server.until_it_answers()
        self.urls = [node.server.celeryconfig["host_url"] for node in self.nodes]
        # The URLs differ between clients, the names do not.
        outside = [
            {"url": url, "name": name}
            for url, name in zip(self.urls, names, strict=True)
        ]
        self.inside = [
            {"url": f"redis://{name}:6379/0", "name": name} for name in names
        ]
        redlock = Redlock(outside, ttl=min(30.0, max_ttl), max_ttl=max_ttl)
        try:
            redlock.initialize()
        finally:
            redlock.close()


class WorkerContainer(CeleryWorkerContainer):
    """A worker in the image of these tests, as pytest-celery's container.

    Attributes:
        raw: The container of the Docker client.
    """

    def __init__(  # noqa: PLR0913  (each of them differs between tests)
        self,
        engine: DockerEngine,
        image: str,
        name: str,
        *,
        concurrency: int = 4,
        environment: Mapping[str, str],
        stage: Path,
        options: Sequence[str] = (),
    ) -> None:
        app = ("celery", "-A", "tests.worker.project.app", "worker", "-l", "INFO")
        self._own_name = name
        self._started_at = 0
        self.raw = engine.run(
            image,
            name,
            command=[
                *(*app, "-n", f"{name}@%h", "-c", str(concurrency)),
                *("--without-gossip", "--without-mingle", *options),
            ],
            environment=dict(environment),
            user=f"{os.getuid()}:{os.getgid()}",  # the tests read its records
            init=True,
            volumes={
                str(ROOT / "tests"): {"bind": "/app/tests", "mode": "ro"},
                str(stage): {"bind": "/stage", "mode": "rw"},
            },
        )
        super().__init__(self.raw)

    @property
    def host(self) -> str:
        """Its host name in locks and records."""
        return self._own_name

    def start(self) -> None:
        """Start it again after it was killed."""
        self._started_at = len(self.logs())
        self.raw.start()

    def ready(self) -> bool:
        """Wait until the worker says that it is ready."""

        def is_ready() -> bool:
            self.reload()
            if self.status == "exited":
                message = f"{self.name} ended while starting:\n{self.logs()}"
                raise RuntimeError(message)
            return " ready." in self.logs()[self._started_at :]

        return until(is_ready, 60, what=f"{self.name} to be ready")

    def teardown(self) -> None:
        """Remove it, running or not."""
        with contextlib.suppress(NotFound):
            self.raw.remove(force=True, v=True)
