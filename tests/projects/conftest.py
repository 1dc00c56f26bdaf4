"""Small projects of users, each with a worker of its own.

A project is one module here. The test imports it as a view of the project would, and
publishes; a real worker runs it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import celery_redlock
from celery_redlock.app.runtime import runtime_of
from tests.harness.lock_nodes import LockNodes, lock_nodes
from tests.harness.processes import LocalWorker, RedisServer
from tests.harness.waiting import until
from tests.projects.app import SERVERS, notes

_numbers = itertools.count(1)


class Project:
    """A project that runs: its module here, and its workers."""

    def __init__(self, module: Any, nodes: LockNodes) -> None:
        self.module = module
        self.nodes = nodes
        self.workers: list[LocalWorker] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def consume(self, queue: str) -> None:
        """Let the workers run what waits in a queue that had no consumer before."""
        self.app.control.add_consumer(queue, reply=True, limit=len(self.workers))

    def until_noted(self, what: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until the bodies have noted this so often, and return the notes."""
        until(lambda: len(notes(what)) >= times, what=f"{times} notes of {what}")
        return notes(what)

    def until_unclaimed(self, key: str) -> None:
        """Wait until no job has the claim of a key."""
        until(lambda: self.nodes.claimant(key) is None, what=f"no claim of {key}")

    def logs(self) -> str:
        """Return what the workers have logged."""
        return "\n".join(worker.logs() for worker in self.workers)


@pytest.fixture(scope="session")
def nodes(redis_server: str) -> Iterator[LockNodes]:
    """Give one lock node."""
    with lock_nodes(1, binary=redis_server) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def redis_broker(redis_server: str) -> Iterator[RedisServer]:
    """Give a redis-server for brokers and result backends."""
    server = RedisServer(redis_server)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start(
    own_tasks: None,
    nodes: LockNodes,
    redis_broker: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Project]]:
    """Give a function that starts a project: its module, and more settings."""
    with contextlib.ExitStack() as stack:

        def start(
            name: str, conf: dict[str, Any] | None = None, **options: Any
        ) -> Project:
            url = f"{redis_broker.url.rpartition('/')[0]}/{next(_numbers)}"
            usual = {"broker_url": url, "result_backend": url}
            conf = {**usual, "redlock_nodes": nodes.urls, **(conf or {})}
            servers = json.dumps({"conf": conf, "notes": str(tmp_path / "notes")})
            monkeypatch.setenv(SERVERS, servers)
            module = f"tests.projects.{name}"
            sys.modules.pop(module, None)  # its app has the servers of another test
            project = Project(importlib.import_module(module), nodes)
            stack.callback(_close, project.app)
            for number in range(options.pop("workers", 1)):
                worker = _worker(module, f"{name}-{number}", tmp_path, **options)
                stack.callback(worker.teardown)
                project.workers.append(worker)
            for worker in project.workers:
                worker.ready()
            return project

        yield start


def _worker(module: str, name: str, folder: Path, **options: Any) -> LocalWorker:
    # `celery` imports this for a shell that no test uses; see `tests.harness`.
    (folder / "click_repl.py").write_text("def register_repl(_): ...\n")
    tests, package = Path(__file__).parents[2], Path(celery_redlock.__path__[0]).parent
    path = os.pathsep.join(map(str, (folder, package, tests)))
    worker = LocalWorker(
        module,
        name,
        folder=folder,
        environment={SERVERS: os.environ[SERVERS], "PYTHONPATH": path},
        cwd=folder,
        **{"concurrency": 2, **options},
    )
    worker.start()
    return worker


def _close(app: Any) -> None:
    app.backend.remove_pending_result = lambda _: None
    app.close()
    runtime = runtime_of(app)
    runtime.stop()
    runtime.redlock.close()
