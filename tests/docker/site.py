"""Deployments whose workers, broker and lock nodes are containers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from tests.docker.containers import DockerEngine, RedisServer, WorkerContainer
from tests.harness.deployment import Deployment, Site
from tests.harness.stage import Stage
from tests.worker.project.app import SETTINGS
from tests.worker.project.body import STAGE


class DockerDeployment(Deployment):
    """Workers in containers. A host names a worker, because pids repeat there."""

    def worker_of(self, key: str) -> int:
        """Return the number of the worker that runs this key."""
        (run,) = self.stage.running(key)
        hosts = [worker.container.host for worker in self.worker_cluster]
        return hosts.index(run.host)

    def victims_of(self, number: int) -> list[int] | list[str]:
        """Return the host of the worker."""
        return [self.worker_cluster[number].container.host]

    def pause_worker(self, number: int) -> None:
        """``docker pause``: all processes of the worker stop."""
        self.worker_cluster[number].container.raw.pause()

    def resume_worker(self, number: int) -> None:
        """``docker unpause``."""
        self.worker_cluster[number].container.raw.unpause()

    def kill_child(self, key: str, *others: str) -> None:
        """SIGKILL the process that runs this key, from within its container."""
        (run,) = self.stage.running(key)
        container = self.worker_cluster[self.worker_of(key)].container
        for record in (key, *others):
            self.stage.killed(record, run.pid)
        kill = f"import os; os.kill({run.pid}, 9)"
        code, said = container.exec_run(["python", "-c", kill])
        assert code == 0, said


class DockerSite(Site):
    """The containers that deployments share."""

    deployment = DockerDeployment

    def __init__(
        self,
        engine: DockerEngine,
        image: str,
        servers: tuple[RedisServer, RedisServer],
        stage: Stage,
    ) -> None:
        self.broker, self.backend = servers
        self.stage = stage
        self._engine = engine
        self._image = image
        self._numbers = itertools.count(1)

    def start_worker(
        self, name: str, settings: Mapping[str, Any], **options: Any
    ) -> Any:
        """Start a container with a worker and return it."""
        return WorkerContainer(
            self._engine,
            self._image,
            name,
            environment={SETTINGS: json.dumps(settings), STAGE: "/stage"},
            stage=self.stage.folder,
            **options,
        )
