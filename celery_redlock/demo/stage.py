"""The servers and the workers of the demo: start them, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_redlock.demo.journal import JOURNAL, Journal
from celery_redlock.demo.tasks import SETTINGS, app
from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.server import spawn
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

__all__ = ["Stage", "set_stage"]

_WORKERS, _SLOTS = 2, 4
_READY_WITHIN = 40.0  # seconds
_ENDS_WITHIN = 5.0


class Stage:
    """What is there to act with.

    Attributes:
        nodes: The five nodes that vote.
        results: An app to read results with.
        journal: What the bodies write down.
        workers: The processes of the workers.
    """

    def __init__(self, nodes: DevNodes, broker: str, folder: Path) -> None:
        self.nodes = nodes
        self.results = Celery("results", backend=broker, set_as_current=False)
        self.journal = Journal(folder / "journal")
        self.workers: list[subprocess.Popen[bytes]] = []
        self._folder = folder

    def start_workers(self, settings: dict[str, Any]) -> None:
        """Start the workers, and return when they take tasks."""
        environment = {
            SETTINGS: json.dumps(settings),
            JOURNAL: str(self.journal.path),
        }
        os.environ.update(environment)
        for number in range(1, _WORKERS + 1):
            command = [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "celery_redlock.demo.tasks",
            ]
            command += ["worker", "-n", f"worker-{number}@%h", "-c", str(_SLOTS)]
            command += ["--without-gossip", "--without-mingle", "-l", "INFO"]
            log = self._folder / f"worker-{number}.log"
            self.workers.append(spawn(command, log, environment))
        deadline = time.monotonic() + _READY_WITHIN
        while len(app.control.ping(timeout=0.5) or []) < _WORKERS:
            if time.monotonic() > deadline or any(w.poll() for w in self.workers):
                raise RedlockError(f"The workers did not start:\n{self.logs()}")

    def logs(self) -> str:
        """Return the last lines of what the workers logged."""
        tails = []
        for log in sorted(self._folder.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            tails += [f"--- {log.name}", *lines[-20:]]
        return "\n".join(tails)

    def state_of(self, task_id: str) -> str:
        """Return the state of a call, as its result says."""
        return str(self.results.backend.get_state(task_id))

    def stop_workers(self) -> None:
        """End the workers and their children, however they are."""
        for worker in self.workers:
            _signal_group(worker, signal.SIGTERM)
        deadline = time.monotonic() + _ENDS_WITHIN
        for worker in self.workers:
            with contextlib.suppress(Exception):
                worker.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(worker, signal.SIGKILL)
            worker.wait()


def _signal_group(worker: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, number)


@contextlib.contextmanager
def set_stage() -> Iterator[Stage]:
    """Start nodes, broker and workers; stop all of them at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="celery-redlock-demo-") as folder,
        DevNodes(5) as nodes,
        DevNodes(1, initialize=False) as broker,
    ):
        stage = Stage(nodes, broker.urls[0], Path(folder))
        settings = {
            "broker_url": broker.urls[0],
            "result_backend": broker.urls[0],
            "redlock_nodes": nodes.urls,
            "task_acks_late": True,
            "task_reject_on_worker_lost": True,
            "worker_prefetch_multiplier": 1,
            "broker_connection_retry_on_startup": True,
        }
        # Without its result backend here, whose listener would still try to reach
        # the server when that is gone. Results are read from the side.
        app.conf.update(settings | {"result_backend": "disabled://"})
        try:
            stage.start_workers(settings)
            yield stage
        finally:
            stage.stop_workers()
            app.close()
