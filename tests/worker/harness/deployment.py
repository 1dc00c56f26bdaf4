"""A broker, a result backend, lock nodes and workers: one thing to test against."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_celery import (
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
)

import celery_redlock
from tests.worker.harness.processes import LocalRedis, LocalWorker, descendants
from tests.worker.harness.waiting import until
from tests.worker.project.app import SETTINGS, create_app
from tests.worker.project.body import STAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery, Task
    from celery.result import AsyncResult

    from tests.worker.harness.nodes import LockNodes
    from tests.worker.harness.stage import Stage

__all__ = ["Deployment", "Site"]

_TESTS = Path(__file__).parents[2]


class Deployment(CeleryTestSetup):
    """Workers of one app with a broker database of their own.

    Attributes:
        nodes: The lock nodes that its workers use.
        stage: Where its task bodies record and wait.
    """

    def __init__(  # noqa: PLR0913  (a deployment has so many parts)
        self,
        *,
        broker: CeleryTestBroker,
        backend: CeleryTestBackend,
        workers: Sequence[CeleryTestWorker],
        nodes: LockNodes,
        stage: Stage,
        app: Celery,
    ) -> None:
        super().__init__(
            worker_cluster=CeleryWorkerCluster(*workers),
            broker_cluster=CeleryBrokerCluster(broker),
            backend_cluster=CeleryBackendCluster(backend),
            app=app,
        )
        self.nodes = nodes
        self.stage = stage

    def task(self, name: str) -> Task:
        """Return the task as this deployment's publishers have it."""
        return self.app.tasks[name]

    def send(self, name: str, *args: Any, **options: Any) -> AsyncResult:
        """Publish a call of a task; options as for ``apply_async``."""
        return self.task(name).apply_async(args, **options)

    def begin(self, name: str, key: str, *args: Any, **options: Any) -> AsyncResult:
        """Publish a call and wait until its body runs."""
        result = self.send(name, key, *args, **options)
        self.until_running(key, result.id)
        return result

    def until_running(self, key: str, *task_ids: str, seconds: float = 10.0) -> None:
        """Wait until the bodies of these tasks run, and no others with the key."""
        until(
            lambda: {run.task_id for run in self.stage.running(key)} == {*task_ids},
            seconds,
            what=f"{task_ids} to run",
        )

    def until_received(self, task_id: str, times: int, seconds: float = 30.0) -> None:
        """Wait until the workers have received messages of this task, so many."""
        until(
            lambda: self.logs().count(f"[{task_id}] received") >= times,
            seconds,
            what=f"{task_id} to be received {times} times",
        )

    def until_idle(self, seconds: float = 60.0) -> None:
        """Wait until no message is queued, on its way, delayed or being worked on."""
        with self.app.connection_for_read() as connection:
            client = connection.default_channel.client

            def is_idle() -> bool:
                return not client.llen("celery") and not client.hlen("unacked")

            until(is_idle, seconds, what="no messages")

    def worker_of(self, key: str) -> int:
        """Return the number of the worker that runs this key."""
        (run,) = self.stage.running(key)
        for number, worker in enumerate(self.worker_cluster):
            pid = worker.container.pid
            if run.pid in (pid, *descendants(pid)):
                return number
        message = f"no worker of ours has the process {run.pid}"
        raise LookupError(message)

    def start_worker(self, number: int = 0) -> None:
        """Start a worker again that was ended."""
        container = self.worker_cluster[number].container
        container.start()
        container.ready()

    def kill_worker(self, key: str, number: int = 0) -> None:
        """SIGKILL a worker with all its children; the record of the key tells."""
        container = self.worker_cluster[number].container
        for pid in (container.pid, *descendants(container.pid)):
            self.stage.killed(key, pid)
        container.kill("SIGKILL")

    def logs(self) -> str:
        """Return what all workers have logged."""
        return "\n".join(worker.logs() for worker in self.worker_cluster)

    def logs_of_the_package(self) -> str:
        """Return the lines that the package has logged in all workers."""
        lines = self.logs().splitlines()
        return "\n".join(line for line in lines if " celery_redlock" in line)

    def teardown(self) -> None:
        """End the workers and close the connections."""
        for worker in self.worker_cluster:
            worker.teardown()
        # A result that a failure's traceback keeps alive has nobody to tell that
        # it is dropped.
        self.app.backend.remove_pending_result = lambda _: None
        self.app.backend.client.close()
        self.app.close()


class Site:
    """Where deployments are made: shared servers, and numbers to tell them apart."""

    def __init__(
        self, folder: Path, broker: LocalRedis, backend: LocalRedis, stage: Stage
    ) -> None:
        self.folder = folder
        self.broker = broker
        self.backend = backend
        self.stage = stage
        self._numbers = itertools.count(1)
        # Workers find the tests through this link, and the package where this
        # process found it: a checkout or an installed wheel.
        (folder / "tests").symlink_to(_TESTS)
        package = Path(celery_redlock.__path__[0]).parent
        self._path = f"{folder}:{package}"

    def deploy(  # noqa: PLR0913  (each of them differs between tests)
        self,
        nodes: LockNodes,
        *,
        pool: str = "prefork",
        concurrency: int = 4,
        workers: int = 1,
        broker: LocalRedis | None = None,
        settings: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
    ) -> Deployment:
        """Start workers and wait until they are ready.

        Args:
            nodes: The lock nodes.
            pool: As of ``celery worker --pool``.
            concurrency: Processes, threads or greenlets of each worker.
            workers: How many workers.
            broker: A broker of its own; default a new database on the common one.
            settings: More of ``app.conf``.
            options: More of the workers' command line.
        """
        number = next(self._numbers)
        broker_node = CeleryTestBroker(broker or self.broker)
        backend_node = CeleryTestBackend(self.backend)
        conf = {
            "broker_url": broker_node.config(vhost=number)["url"],
            "result_backend": backend_node.config()["url"],
            "redlock_nodes": nodes.urls,
            **(settings or {}),
        }
        app = create_app(conf)
        environment = {
            SETTINGS: json.dumps(conf),
            STAGE: str(self.stage.folder),
            "PYTHONPATH": self._path,
        }
        started = []
        for index in range(workers):
            container = LocalWorker(
                self.folder,
                f"{pool}-{number}-{index}",
                app="tests.worker.project.app",
                pool=pool,
                concurrency=concurrency,
                environment=environment,
                options=options,
            )
            container.start()
            started.append(CeleryTestWorker(container, app))
        deployment = Deployment(
            broker=broker_node,
            backend=backend_node,
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
