"""The servers and workers of the demo."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from celery import Celery

from celery_redlock.devnodes import DevNodes, DevStore
from celery_redlock.devnodes.processes import stop
from demo.journal import JOURNAL
from demo.tasks import SETTINGS, app
from tests.harness.commands import Worker
from tests.harness.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
_WORKERS, _CONCURRENCY = ("worker-1", "worker-2"), 4
_SHOWN = 20  # lines of each log


class Processes:
    """The running servers and workers.

    Attributes:
        nodes: The five lock nodes, or the store.
        workers: The Celery workers.
        results: An app that reads results.
        journal: The records of the task bodies.
    """

    def __init__(self, nodes: DevNodes | DevStore, broker: str, folder: Path) -> None:
        self.nodes = nodes
        self.journal = Journal(folder / "journal")
        self.results = Celery("results", backend=broker, set_as_current=False)
        settings = {
            "broker_url": broker,
            "result_backend": broker,
            "redlock_nodes": nodes.urls,
            "task_acks_late": True,
            "task_reject_on_worker_lost": True,
            "worker_prefetch_multiplier": 1,
            "broker_connection_retry_on_startup": True,
        }
        # This process publishes without a result backend: the backend's listener would
        # still look for the server after its end.
        app.conf.update(settings | {"result_backend": "disabled://"})
        os.environ[JOURNAL] = str(self.journal.path)
        self.workers = [
            Worker(
                "demo.tasks",
                name,
                folder=folder,
                concurrency=_CONCURRENCY,
                environment={SETTINGS: json.dumps(settings)},
                cwd=_ROOT,
            )
            for name in _WORKERS
        ]

    def state_of(self, task_id: str) -> str:
        """Return the state of a call according to its result."""
        return str(self.results.backend.get_state(task_id))

    def logs(self) -> str:
        """Return the last lines of the logs of the workers."""
        tails = []
        for worker in self.workers:
            last = worker.logs().splitlines()[-_SHOWN:]
            tails += [f"--- {worker.log_file.name}", *last]
        return "\n".join(tails)


@contextlib.contextmanager
def start_processes(store: str | None = None) -> Iterator[Processes]:
    """Start nodes, broker and workers; stop all of them at the end.

    Args:
        store: The kind of store to start in place of the nodes.
    """
    with (
        tempfile.TemporaryDirectory(prefix="celery-redlock-demo-") as folder,
        DevStore(store) if store else DevNodes(5) as nodes,
        DevNodes(1, initialize=False) as broker,
    ):
        processes = Processes(nodes, broker.urls[0], Path(folder))
        try:
            for worker in processes.workers:
                worker.start()
            for worker in processes.workers:
                worker.wait_until_ready()
            yield processes
        finally:
            stop(*processes.workers, within=5.0)
            app.close()
