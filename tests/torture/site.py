"""Everything that a torture needs, as local processes: started, healed, stopped."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from celery import Celery

import celery_redlock
from celery_redlock import Redlock
from celery_redlock.devnodes import DevNodes, ServerOptions, find_redis_server
from tests.torture import producer, proxy
from tests.torture.broker import BROKERS
from tests.torture.journal import FOLDER, Journal
from tests.torture.ledger import Ledger
from tests.torture.names import CELLS, COUNTERS, SETS, SETTINGS
from tests.worker.harness.nodes import LockNodes
from tests.worker.harness.processes import (
    LocalProcess,
    LocalRedis,
    LocalWorker,
    free_port,
)
from tests.worker.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

__all__ = ["TTL", "Site"]

TTL, MAX_TTL = 3.0, 4.0  # seconds: shorter than the pauses
_PREFIX = "redlock"
_PYTHON_PATH = ":".join(
    str(path)
    for path in (Path(celery_redlock.__path__[0]).parent, Path(__file__).parents[2])
)
_SETTINGS = {
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "redlock_ttl": TTL,
    "redlock_max_ttl": MAX_TTL,
    "redlock_node_timeout": 0.25,  # the machine is busy with its own torture
    "result_chord_join_timeout": 10,
    "worker_prefetch_multiplier": 1,
    "worker_log_format": "[%(asctime)s %(levelname)s %(processName)s] %(message)s",
    "worker_task_log_format": "[%(asctime)s %(levelname)s %(processName)s] %(message)s",
}


class Program(LocalProcess):
    """A module of ours."""

    def __init__(
        self, folder: Path, name: str, module: Any, arguments: Sequence[str]
    ) -> None:
        super().__init__(folder, name)
        self._module = module
        self._arguments = arguments
        self.variables: Mapping[str, str] = {}

    @property
    def ready_prompt(self) -> str:  # type: ignore[override]
        """What it says when it is ready."""
        return str(self._module.READY)

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        return [sys.executable, "-m", self._module.__name__, *self._arguments]

    def environment(self) -> Mapping[str, str]:
        """Return the variables that it gets beside ours."""
        return {"PYTHONUNBUFFERED": "1", "PYTHONPATH": _PYTHON_PATH, **self.variables}


class Site:
    """The processes of one torture, in one folder. Use it as a context manager.

    Args:
        folder: Where everything is written; empty.
        seed: Chooses the jobs.
        broker: One of `BROKERS`.
        split: Plant a bug: each worker locks on a node of its own.

    Attributes:
        nodes: The lock nodes.
        workers: The Celery workers; the first two are prefork.
        journal: Where all of them write.
        bystanders: Every process that was ever seen below the workers.
    """

    def __init__(
        self, folder: Path, seed: int, *, broker: str = "redis", split: bool = False
    ) -> None:
        self.folder = folder
        self._split = split
        self.journal = Journal(folder)
        self.ledger = Ledger(folder)
        binary = find_redis_server()
        durable = ServerOptions(config={"appendonly": "yes", "appendfsync": "always"})
        self.nodes = DevNodes(5, binary=binary, initialize=False, options=durable)
        self.broker = BROKERS[broker](folder)
        self.backend = LocalRedis(folder, "backend", binary)
        self.workers: list[LocalWorker] = []
        self.producers = [
            Program(folder, f"producer-{n}", producer, [f"{seed}-{n}"]) for n in (0, 1)
        ]
        self.bystanders: set[psutil.Process] = set()
        self._control = free_port()
        self._everything = contextlib.ExitStack()
        self._ports = [free_port() for _ in self.nodes.nodes]

    # -- Start ---------------------------------------------------------------

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._everything = stack.pop_all()
        return self

    def _start(self, stack: contextlib.ExitStack) -> None:
        stack.callback(self.ledger.close)
        stack.enter_context(self.nodes)
        ways = [
            f"{port}:{node.port}"
            for port, node in zip(self._ports, self.nodes.nodes, strict=True)
        ]
        lines = Program(self.folder, "proxy", proxy, [str(self._control), *ways])
        for server in (self.broker, self.backend, lines):
            stack.callback(server.teardown)
            server.start()
            server.ready()
        self.settings = {
            **_SETTINGS,
            "broker_url": self.broker.celeryconfig["url"],
            "broker_transport_options": self.broker.options,
            "result_backend": self.backend.celeryconfig["url"],
            "redlock_nodes": self._addresses(),
        }
        for addresses in self._deployments():
            redlock = Redlock(addresses, ttl=TTL, max_ttl=MAX_TTL)
            redlock.initialize()
            redlock.close()
        self.looks = LockNodes(self.nodes)
        stack.callback(self.looks.close)
        self.ledger.create([*CELLS, *SETS])
        for counter in COUNTERS:
            (self.folder / counter).write_text("0".rjust(12))
        self.app = Celery("torture", set_as_current=False)
        self.app.conf.update(self.settings)
        stack.callback(self.app.close)
        variables = {SETTINGS: json.dumps(self.settings), FOLDER: str(self.folder)}
        deployments = itertools.cycle(self._deployments())
        for number, pool in enumerate(["prefork", "prefork", "threads", "threads"]):
            own = {**self.settings, "redlock_nodes": next(deployments)}
            worker = LocalWorker(
                self.folder,
                f"{pool}-{number}",
                app="tests.torture.project",
                pool=pool,
                concurrency=3,
                environment={
                    **variables,
                    SETTINGS: json.dumps(own),
                    "PYTHONPATH": _PYTHON_PATH,
                },
            )
            stack.callback(worker.teardown)
            self.workers.append(worker)
            worker.start()
        for worker in self.workers:
            worker.ready(60)
        for program in self.producers:
            program.variables = variables
            stack.callback(program.teardown)
            program.start()
        for program in self.producers:
            program.ready()

    def _deployments(self) -> list[list[dict[str, str]]]:
        """Return the nodes of each deployment: there is one, unless it is split."""
        addresses = self._addresses()
        return [[address] for address in addresses] if self._split else [addresses]

    def _addresses(self) -> list[dict[str, str]]:
        return [
            {"url": f"redis://127.0.0.1:{port}/0", "name": f"node-{number}"}
            for number, port in enumerate(self._ports)
        ]

    # -- While it runs -------------------------------------------------------

    def line(self, number: int, mode: str) -> None:
        """Change how the line to a node behaves; see ``proxy``."""
        with socket.create_connection((proxy.HOST, self._control), 10) as control:
            control.sendall(f"{number} {mode}\n".encode())
            answer = control.recv(10)
        if answer != b"ok\n":
            message = f"the proxy did not do {mode!r}: {answer!r}"
            raise RuntimeError(message)

    def votes(self, number: int) -> bool:
        """Tell whether a node has the right to vote, by what it stores."""
        node = self.nodes.nodes[number]
        run_id = node.command("INFO", "server")["run_id"]
        meta = node.command("HGETALL", f"{_PREFIX}:meta")
        waits = node.command("EXISTS", f"{_PREFIX}:quarantine")
        knows_itself = meta.get("run_id") == run_id
        return knows_itself and meta.get("synced") == meta["life"] and not waits

    def look_around(self) -> None:
        """Remember which processes there are below the workers."""
        for worker in self.workers:
            with contextlib.suppress(psutil.Error):
                leader = psutil.Process(worker.pid)
                self.bystanders |= {leader, *leader.children(recursive=True)}

    # -- The end -------------------------------------------------------------

    def heal(self) -> None:
        """Undo all faults, and wait until all run."""
        for number, node in enumerate(self.nodes.nodes):
            self.line(number, "open")
            if node.is_running:
                node.resume()
            node.start()
        for process in (self.broker, *self.workers):
            process.unpause()
            if process.status == "exited":
                process.start()
        for process in (self.broker, *self.workers):
            process.ready(60)

    def end_production(self) -> None:
        """End the producers."""
        for program in self.producers:
            if program.status == "running":
                program.kill("SIGTERM")

    def restart_workers(self) -> None:
        """End the workers as a deployment does, and start them again."""
        self.end_workers()
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.ready(60)

    def end_workers(self) -> int:
        """End the workers by SIGTERM; return how many did not end by it."""
        self.look_around()
        for worker in self.workers:
            os.kill(worker.pid, signal.SIGTERM)
        stubborn = [worker for worker in self.workers if not _ends(worker)]
        for worker in stubborn:
            worker.kill("SIGKILL")
        return len(stubborn)

    def left_behind(self, seconds: float = 10.0) -> list[str]:
        """Return the processes that should have ended, after this time at most."""

        def left() -> list[psutil.Process]:
            return [one for one in self.bystanders if _lives(one)]

        with contextlib.suppress(AssertionError):
            until(lambda: not left(), seconds)
        return [f"{one.pid}: {_words(one)}" for one in left()]

    def __exit__(self, *_: object) -> None:
        self._everything.close()
        deadline = time.monotonic() + 10
        while any(map(_lives, self.bystanders)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in filter(_lives, self.bystanders):
            with contextlib.suppress(psutil.Error):
                process.kill()


def _ends(worker: LocalWorker) -> bool:
    try:
        worker.wait(30)
    except AssertionError:
        return False
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != "zombie")
    except psutil.Error:
        return False


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"
