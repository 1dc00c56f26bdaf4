"""A broker, a result backend, lock nodes and workers: one thing to test against."""

from __future__ import annotations

import itertools
import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

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
from celery_redlock.app.runtime import _ATTRIBUTE
from tests.harness.processes import LocalWorker, RedisServer, descendants
from tests.harness.stage import Stage
from tests.harness.waiting import until
from tests.worker.project.app import SETTINGS, create_app
from tests.worker.project.body import STAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from celery import Celery, Task
    from celery.result import AsyncResult
    from typing_extensions import Self

    from tests.harness.lock_nodes import LockNodes

Deploy: TypeAlias = "Callable[..., Deployment]"  # starts workers for one test

_TESTS = Path(__file__).parents[1]


class Deployment(CeleryTestSetup):
    """Workers of one app with a broker database of their own: a context manager.

    Attributes:
        nodes: The lock nodes that its workers use.
        stage: The records and gates of its task bodies.
    """

    def __init__(  # noqa: PLR0913  (a deployment has so many parts)
        self,
        *,
        broker: CeleryTestBroker,
        backend: CeleryTestBackend,
        workers: Iterable[Any],
        nodes: LockNodes,
        stage: Stage,
        app: Celery,
    ) -> None:
        nodes_of_workers = [CeleryTestWorker(worker, app) for worker in workers]
        super().__init__(
            worker_cluster=CeleryWorkerCluster(*nodes_of_workers),
            broker_cluster=CeleryBrokerCluster(broker),
            backend_cluster=CeleryBackendCluster(backend),
            app=app,
        )
        self.nodes = nodes
        self.stage = stage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.teardown()

    def task(self, name: str) -> Task:
        """Return the task as the publishers of this deployment have it."""
        return self.app.tasks[name]

    def send(self, name: str, *args: Any, **options: Any) -> AsyncResult:
        """Publish a call of a task; options as for ``apply_async``."""
        return self.task(name).apply_async(args, **options)

    def begin(self, name: str, key: str, *args: Any, **options: Any) -> AsyncResult:
        """Publish a call and wait until its body runs."""
        result = self.send(name, key, *args, **options)
        self.until_running(key, result.id)
        return result

    def finish(self, key: str, *jobs: AsyncResult) -> None:
        """Open the gate of a key, and check that each of these jobs returns its id."""
        self.stage.open(key)
        returned = [job.get(timeout=60) for job in jobs]
        assert returned == [job.id for job in jobs], returned

    def until_running(self, key: str, *task_ids: str, seconds: float = 60.0) -> None:
        """Wait until the bodies of these tasks run, and no others with the key."""
        until(
            lambda: {run.task_id for run in self.stage.running(key)} == {*task_ids},
            seconds,
            what=f"{task_ids} to run",
        )

    def until_received(self, task_id: str, times: int, seconds: float = 60.0) -> None:
        """Wait until the workers have received this number of messages of the task."""
        until(
            lambda: self.logs().count(f"[{task_id}] received") >= times,
            seconds,
            what=f"{task_id} to be received {times} times",
        )

    def until_settled(self, *task_ids: str, seconds: float = 60.0) -> None:
        """Wait until no message of these jobs is queued, delayed or being worked on.

        Each of them must have been received before: Celery's Redis transport takes a
        message from the queue first, and records that it has it afterwards.

        Workers that tests share may have messages of others for an hour: a revoked job
        is discarded when it is due.
        """
        until(
            lambda: self._jobs_in_broker().isdisjoint(task_ids),
            seconds,
            what=f"no messages of {task_ids}",
        )

    def worker_of(self, key: str) -> int:
        """Return the number of the worker that runs this key."""
        (run,) = self.stage.running(key)
        for number, worker in enumerate(self.worker_cluster):
            pid = worker.container.pid
            if run.pid in (pid, *descendants(pid)):
                return number
        message = f"no worker of this deployment has the process {run.pid}"
        raise LookupError(message)

    def start_worker(self, number: int = 0) -> None:
        """Start a worker again that has ended."""
        container = self.worker_cluster[number].container
        container.start()
        container.ready()

    def kill_worker(
        self, key: str, number: int = 0, jobs: Sequence[AsyncResult] = ()
    ) -> None:
        """SIGKILL a worker with all its children, and record it under the key.

        Args:
            key: The key of the record.
            number: The number of the worker.
            jobs: Jobs that must survive. Celery's Redis transport loses a message that
                a worker has taken from the queue and not recorded yet. So the kill
                waits for a moment in which the broker has a message of each job that
                has not ended.
        """
        container = self.worker_cluster[number].container
        wanted: set[str] = set()

        def is_safe() -> bool:
            self.pause_worker(number)
            wanted.clear()
            wanted.update(job.id for job in jobs if not job.ready())
            safe = wanted <= self._jobs_in_broker()
            if not safe:
                self.resume_worker(number)
            return safe

        until(is_safe, what=f"a message of each of {wanted}")
        for victim in self.victims_of(number):
            self.stage.killed(key, victim)
        container.kill("SIGKILL")

    def kill_child(self, key: str, *others: str) -> None:
        """SIGKILL the process that runs this key; it may now run one of the others."""
        (run,) = self.stage.running(key)
        for record in (key, *others):
            self.stage.killed(record, run.pid)
        os.kill(run.pid, signal.SIGKILL)

    def victims_of(self, number: int) -> list[int] | list[str]:
        """Return the names by which records know the processes of a worker."""
        pid = self.worker_cluster[number].container.pid
        return [pid, *descendants(pid)]

    def pause_worker(self, number: int) -> None:
        """Stop all processes of a worker (SIGSTOP)."""
        self.worker_cluster[number].container.pause()

    def resume_worker(self, number: int) -> None:
        """Continue all processes of a worker (SIGCONT)."""
        self.worker_cluster[number].container.resume()

    @contextmanager
    def worker_paused(self) -> Iterator[None]:
        """Stop a worker while the block runs: it takes no message from the broker."""
        self.pause_worker(0)
        try:
            yield
        finally:
            self.resume_worker(0)

    def _jobs_in_broker(self) -> set[str]:
        """Return the ids of all jobs that are queued or taken by a worker."""
        with self.app.connection_for_read() as connection:
            moment = connection.default_channel.client.pipeline(transaction=True)
            moment.hvals("unacked").lrange("celery", 0, -1)
            taken, queued = moment.execute()
        messages = [json.loads(text)[0] for text in taken]
        messages += [json.loads(text) for text in queued]
        return {message["headers"]["id"] for message in messages}

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
        # A failure's traceback may keep a result alive. It must not call a backend that
        # is closed.
        self.app.backend.remove_pending_result = lambda _: None
        self.app.backend.client.close()
        made = vars(self.app).get(_ATTRIBUTE)  # it may never have wanted a lock
        for redlock in made._service.values() if made else ():  # noqa: SLF001
            redlock.close()
        self.app.close()


class Site:
    """The servers that deployments share, and their folder: a context manager.

    Args:
        folder: The folder of all logs and records.
        redis_server: The program of the broker and the result backend.

    Attributes:
        broker: The redis-server with one broker database for each deployment.
        backend: The redis-server with all results.
        stage: The records and gates of all task bodies.
    """

    deployment: ClassVar[type[Deployment]] = Deployment

    def __init__(self, folder: Path, redis_server: str) -> None:
        self.folder = folder
        self.broker: Any = RedisServer(redis_server)
        self.backend: Any = RedisServer(redis_server)
        self.stage = Stage(folder / "stage")
        self._numbers = itertools.count(1)
        # Child processes find the tests through this link, and the package where this
        # process found it: a checkout or an installed wheel.
        (folder / "tests").symlink_to(_TESTS)
        # `celery` imports this for a shell that no test uses. The real one would take
        # a tenth of the time in which a worker starts.
        (folder / "click_repl.py").write_text("def register_repl(_): ...\n")
        self._path = f"{folder}:{Path(celery_redlock.__path__[0]).parent}"

    def __enter__(self) -> Self:
        try:
            self.broker.start()
            self.backend.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()
        self.backend.stop()

    def number(self) -> int:
        """Return a number that no other deployment here has."""
        return next(self._numbers)

    def environment(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables by which a child process finds its code and settings."""
        return {
            SETTINGS: json.dumps(settings),
            STAGE: str(self.stage.folder),
            "PYTHONPATH": self._path,
        }

    def deploy(
        self,
        nodes: LockNodes,
        *,
        workers: int = 1,
        broker: RedisServer | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Deployment:
        """Start workers and wait until they are ready.

        Args:
            nodes: The lock nodes.
            workers: The number of workers.
            broker: A broker of its own; by default a new database on the common one.
            settings: More of ``app.conf``.
            options: As for `Worker`: pool, concurrency, options.
        """
        number = self.number()
        broker_node = CeleryTestBroker(broker or self.broker)
        backend_node = CeleryTestBackend(self.backend)
        addresses = broker_node.config(vhost=number), backend_node.config()

        def conf(url: str, lock_nodes: list[Any]) -> dict[str, Any]:
            return {
                "broker_url": addresses[0][url],
                "result_backend": addresses[1][url],
                "redlock_nodes": lock_nodes,
                **(settings or {}),
            }

        there = conf("url", nodes.addresses)
        started = [
            self.start_worker(f"worker-{number}-{index}", there, **options)
            for index in range(workers)
        ]
        deployment = self.deployment(
            broker=broker_node,
            backend=backend_node,
            workers=started,
            nodes=nodes,
            stage=self.stage,
            app=create_app(conf("host_url", nodes.urls)),
        )
        try:
            for worker in started:
                worker.ready()
        except BaseException:
            deployment.teardown()
            raise
        return deployment

    def start_worker(
        self, name: str, settings: Mapping[str, Any], **options: Any
    ) -> Any:
        """Start a worker and return its container."""
        worker = LocalWorker(
            "tests.worker.project.app",
            name,
            folder=self.folder,
            environment=self.environment(settings),
            cwd=self.folder,
            **options,
        )
        worker.start()
        return worker
