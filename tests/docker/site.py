"""Deployments whose workers, broker and lock nodes are containers."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from pytest_celery import CeleryTestBackend, CeleryTestBroker, CeleryTestWorker

from tests.docker.containers import WorkerContainer
from tests.worker.harness.deployment import Deployment
from tests.worker.project.app import SETTINGS, create_app
from tests.worker.project.body import STAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.docker.containers import RedisServer, Yard
    from tests.worker.harness.nodes import LockNodes
    from tests.worker.harness.stage import Stage

__all__ = ["DockerDeployment", "DockerSite"]


class DockerDeployment(Deployment):
    """Workers in containers. Processes are known by host, as pids repeat there."""

    def worker_of(self, key: str) -> int:
        """Return the number of the worker that runs this key."""
        (run,) = self.stage.running(key)
        hosts = [worker.container.host for worker in self.worker_cluster]
        return hosts.index(run.host)

    def kill_worker(self, key: str, number: int = 0) -> None:
        """``docker kill``: all processes of the worker end at once."""
        container = self.worker_cluster[number].container
        self.stage.killed(key, container.host)
        container.kill("SIGKILL")

    def pause_worker(self, number: int) -> None:
        """``docker pause``: all processes of the worker stop."""
        self.worker_cluster[number].container.raw.pause()

    def resume_worker(self, number: int) -> None:
        """``docker unpause``."""
        self.worker_cluster[number].container.raw.unpause()

    def kill_child(self, key: str) -> None:
        """SIGKILL the process that runs this key, from within its container."""
        (run,) = self.stage.running(key)
        container = self.worker_cluster[self.worker_of(key)].container
        self.stage.killed(key, run.pid)
        kill = f"import os; os.kill({run.pid}, 9)"
        code, said = container.exec_run(["python", "-c", kill])
        assert code == 0, said


class DockerSite:
    """Where deployments are made; as ``tests.worker.harness.deployment.Site``."""

    def __init__(
        self,
        yard: Yard,
        image: str,
        servers: tuple[RedisServer, RedisServer],
        stage: Stage,
    ) -> None:
        self.stage = stage
        self._yard = yard
        self._image = image
        self._broker, self._backend = servers
        self._numbers = itertools.count(1)

    def deploy(
        self,
        nodes: LockNodes,
        *,
        concurrency: int = 4,
        workers: int = 1,
        settings: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
    ) -> DockerDeployment:
        """Start workers and wait until they are ready.

        Args:
            nodes: The lock nodes.
            concurrency: Processes of each worker.
            workers: How many workers.
            settings: More of ``app.conf``.
            options: More of the workers' command line.
        """
        number = next(self._numbers)
        broker = CeleryTestBroker(self._broker)
        backend = CeleryTestBackend(self._backend)
        addresses = broker.config(vhost=number), backend.config()
        app = create_app(_conf(addresses, "host_url", nodes.urls, settings))
        inside = _conf(addresses, "url", nodes.dev.inside, settings)  # type: ignore[attr-defined]
        started = [
            CeleryTestWorker(
                WorkerContainer(
                    self._yard,
                    self._image,
                    f"worker-{number}-{index}",
                    concurrency=concurrency,
                    environment={SETTINGS: json.dumps(inside), STAGE: "/stage"},
                    stage=self.stage.folder,
                    options=options,
                ),
                app,
            )
            for index in range(workers)
        ]
        deployment = DockerDeployment(
            broker=broker,
            backend=backend,
            workers=started,
            nodes=nodes,
            stage=self.stage,
            app=app,
        )
        try:
            for worker in started:
                worker.ready()
        except BaseException:
            deployment.teardown()
            raise
        return deployment


def _conf(
    addresses: Sequence[Mapping[str, Any]],
    url: str,
    nodes: Sequence[Any],
    settings: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return settings as they are on one side of the containers' wall."""
    broker, backend = addresses
    return {
        "broker_url": broker[url],
        "result_backend": backend[url],
        "redlock_nodes": list(nodes),
        **(settings or {}),
    }
