"""All processes of one run, each in a namespace of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redlock.devnodes import find_redis_server
from celery_redlock.devnodes.processes import Process, stop
from tests.harness.clocks import ClockError, faketime_environment
from tests.harness.journal import Journal
from tests.partitions import store, worker
from tests.partitions.network import Network

if TYPE_CHECKING:
    from typing_extensions import Self

TTL, MAX_TTL = 2.0, 3.0  # seconds: shorter than the pauses
KEYS = [f"key-{number}" for number in range(3)]
NODES = [f"node-{number}" for number in range(5)]
WORKERS = [f"worker-{number}" for number in range(4)]
STORE = "store"
_THREADS = 2
_PORT = 6379
_ROOT = Path(__file__).parents[2]


class Site:
    """The network and the processes of one run: a context manager.

    Args:
        folder: An empty folder for everything that they write.
        seed: Chooses the operations.
        split: Plant a bug: two workers lock on one node, and two on another one.

    Attributes:
        network: The namespaces and their links.
        journal: The common record of all processes.
        processes: All processes by the name of their host.
    """

    def __init__(self, folder: Path, seed: int, *, split: bool = False) -> None:
        self.folder, self._seed, self._split = folder, seed, split
        self.journal = Journal(folder / "journal.jsonl")
        self.network = Network([*NODES, *WORKERS, STORE])
        self.processes: dict[str, Process] = {}
        self._binary = find_redis_server()
        self._faketime: dict[str, str] = {}
        with contextlib.suppress(ClockError):
            self._faketime = faketime_environment(self._binary)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.network)
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        for name in NODES:
            self._process(name, self._server(name), "Ready to accept connections")
        command = [sys.executable, "-um", store.__name__]
        own = [self.network.address(STORE), str(self.folder), str(self._seed)]
        self._process(STORE, [*command, *own], store.READY)
        for number, name in enumerate(WORKERS):
            settings = json.dumps(dataclasses.asdict(self._settings(number)))
            command = [sys.executable, "-um", worker.__name__, settings]
            self._process(name, command, worker.READY)
        for process in self.processes.values():
            stack.callback(process.kill)
        for name in (*NODES, STORE):
            self.processes[name].start()
        for name in (*NODES, STORE):
            self.processes[name].wait_until_ready()
        for name in WORKERS:  # one by one: the first of a deployment initializes it
            self.processes[name].start()
            self.processes[name].wait_until_ready()

    def _process(self, name: str, command: list[str], ready: str) -> None:
        words = self.network.on(name, *command)
        log = self.folder / f"{name}.log"
        self.processes[name] = Process(name, words, log=log, ready=ready, cwd=_ROOT)

    def _server(self, name: str) -> list[str]:
        options = {
            "bind": self.network.address(name),
            "port": str(_PORT),
            "protected-mode": "no",
            "save": "",
            "dir": str(self.folder),
        }
        words = [word for key, text in options.items() for word in (f"--{key}", text)]
        if not self._faketime:
            return [self._binary, *words]
        self.set_clock(name, 0.0)
        clock = {"FAKETIME_TIMESTAMP_FILE": str(self._clock(name))}
        pairs = [f"{key}={text}" for key, text in {**self._faketime, **clock}.items()]
        return ["env", *pairs, self._binary, *words]

    def _settings(self, number: int) -> worker.Settings:
        urls = [f"redis://{self.network.address(name)}:{_PORT}/0" for name in NODES]
        deployments = [[url] for url in urls[:2]] if self._split else [urls]
        return worker.Settings(
            number=number,
            workers=len(WORKERS),
            threads=_THREADS,
            nodes=deployments[number % len(deployments)],
            store=self.network.address(STORE),
            journal=str(self.journal.path),
            keys=KEYS,
            ttl=TTL,
            max_ttl=MAX_TTL,
            node_timeout=0.2,
            patience=0.8,
            seed=self._seed,
            initialize=number < len(deployments),
        )

    # -- Clocks ----------------------------------------------------------------------

    @property
    def has_clocks(self) -> bool:
        """Whether the clocks of nodes can be stepped."""
        return bool(self._faketime)

    def _clock(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    def set_clock(self, name: str, offset: float) -> None:
        """Set the wall clock of a node ahead of the machine's; back if negative."""
        draft = self.folder / f"{name}.clock.new"
        draft.write_text(f"{offset:+.3f}\n", "ascii")
        draft.replace(self._clock(name))

    def time_of(self, name: str) -> float:
        """Return the wall clock of a node, as its `TIME` says."""
        ask = (
            f"import redis; print(*redis.Redis('{self.network.address(name)}').time())"
        )
        seconds, micros = self.network.ask(name, sys.executable, "-c", ask).split()
        return int(seconds) + int(micros) / 1e6

    # -- The end ---------------------------------------------------------------------

    def end(self) -> list[str]:
        """End the workers, then the store; return the names of those that did not end.

        Each worker ends its turns before, and the store writes its file.
        """
        late = stop(*(self.processes[name] for name in WORKERS), within=30)
        late += stop(self.processes[STORE], within=10)
        return [process.name for process in late]

    def store_content(self) -> dict[str, Any]:
        """Return what the store has written at its end."""
        content = json.loads((self.folder / store.FILE).read_text("utf-8"))
        assert isinstance(content, dict)
        return content
