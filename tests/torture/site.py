"""All processes of one torture: start them, repair them, stop them."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from celery import Celery

import celery_redlock
from celery_redlock import Redlock
from celery_redlock.devnodes import (
    STORES,
    DevNodes,
    ServerOptions,
    find_redis_server,
)
from celery_redlock.devnodes.processes import Process, stop
from tests.harness.clocks import Clock, ClockError, nodes_with_clocks
from tests.harness.commands import Worker
from tests.harness.lock_nodes import LockNodes
from tests.harness.processes import RedisServer
from tests.harness.servers import sqlalchemy_url
from tests.harness.store_nodes import StoreNodes
from tests.harness.tcp import proxies
from tests.harness.waiting import until
from tests.torture import (
    CELLS,
    COUNTERS,
    EFFECTS,
    FOLDER,
    PLANT,
    SETS,
    SETTINGS,
    journal_in,
    producer,
)
from tests.torture.broker import BROKERS, DurableRedis
from tests.torture.effects import DATABASE, Database
from tests.torture.ledger import Ledger
from tests.torture.network import HUB, Network
from tests.torture.standby import WithStandby

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from tests.harness.tcp import Proxy

WITH_STANDBY = "postgresql-standby"
TORTURED = (*STORES, WITH_STANDBY)  # stores
NODES = [f"node-{number}" for number in range(5)]
_POOLS = ["prefork", "prefork", "threads", "threads"]
_WORKERS = [f"{pool}-{number}" for number, pool in enumerate(_POOLS)]
TTL, MAX_TTL = 3.0, 4.0  # seconds: shorter than the pauses
_SLOW = 0.4  # seconds
_PREFIX = "redlock"
_FOLDERS = (Path(celery_redlock.__path__[0]).parent, Path(__file__).parents[2])
_LOG_FORMAT = "[%(asctime)s %(levelname)s %(processName)s] %(message)s"
# On the hub of a network, servers listen to the hosts of the workers, too.
_OPEN = {"bind": "0.0.0.0", "protected-mode": "no"}  # noqa: S104  (no way leads there)
_SETTINGS = {
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "redlock_ttl": TTL,
    "redlock_max_ttl": MAX_TTL,
    "redlock_node_timeout": 0.25,  # the faults keep the machine busy
    "result_chord_join_timeout": 10,
    "worker_prefetch_multiplier": 1,
    # With it, two threads of a worker with threads read from one connection to RabbitMQ
    # after it was lost, and the worker takes no messages any more.
    "worker_enable_prefetch_count_reduction": False,
    "worker_log_format": _LOG_FORMAT,
    "worker_task_log_format": _LOG_FORMAT,
}


class Site:
    """The processes of one torture, in one folder: a context manager.

    Args:
        folder: An empty folder for everything that they write.
        seed: Chooses the jobs.
        broker: One of `BROKERS`.
        kinds: The kinds of jobs to send; all by default.
        jobs: How many jobs to send, which is also the end of the faults; 0 for no end.
        store: The store to lock on, one of ``TORTURED``; five Redis nodes by default.
        network: Whether each worker has a network namespace of its own, with links to
            the nodes, which are Redis nodes, as the broker is.
        plant: Plant a bug: ``"split"``: each worker locks on another node; ``"own
            permits"``: each process has permits of its own.

    Attributes:
        kinds, jobs, store: See above.
        nodes: The lock nodes.
        ways: The proxies to the nodes, in their order; none on a network.
        network: The network; None without one.
        clocks: The clocks of the nodes; empty if they cannot be stepped.
        workers: The Celery workers; the first two are prefork.
        database: The PostgreSQL of jobs with effects; None if no such job is sent.
        journal: The common record of all processes.
        seen: Every process that was ever seen below the workers.
    """

    def __init__(  # noqa: PLR0913  (each of them is a choice)
        self,
        folder: Path,
        seed: int,
        *,
        broker: str = "redis",
        kinds: Sequence[str] = (),
        jobs: int = 0,
        plant: str = "",
        store: str = "",
        network: bool = False,
    ) -> None:
        self.folder = folder
        self.network = Network(NODES, _WORKERS) if network else None
        config = _OPEN if network else {}
        self.kinds, self.jobs, self._plant = kinds, jobs, plant
        self.journal = journal_in(folder)
        self.ledger = Ledger(folder)
        self.clocks: list[Clock] = []
        self.store = store
        self.nodes = self._make_nodes(config)
        self.broker = (
            DurableRedis(folder, **config) if network else BROKERS[broker](folder)
        )
        self.backend = RedisServer(**config)
        self.database = Database() if EFFECTS.intersection(kinds) else None
        self.ways: list[Proxy] = []
        self.workers: list[Worker] = []
        self.producers: list[Process] = []
        self.seen: set[psutil.Process] = set()
        self._seed = seed
        self._everything = contextlib.ExitStack()

    @property
    def has_standby(self) -> bool:
        """Whether the store has a standby that can be promoted."""
        return self.store == WITH_STANDBY

    # -- Start ---------------------------------------------------------------

    def _make_nodes(self, config: dict[str, str]) -> Any:
        if self.store == WITH_STANDBY:
            return WithStandby()
        if self.store:
            return StoreNodes(self.store, initialize=False)
        count = len(NODES)
        durable = {"appendonly": "yes", "appendfsync": "always", **config}
        if self.network:
            with contextlib.suppress(ClockError):
                nodes, self.clocks = nodes_with_clocks(
                    count, find_redis_server(), self.folder, durable, initialize=False
                )
                return nodes
        options = ServerOptions(config=durable)
        return DevNodes(count, initialize=False, options=options)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._everything = stack.pop_all()
        return self

    def _start(self, stack: contextlib.ExitStack) -> None:
        stack.callback(self.ledger.close)
        if self.network:
            stack.enter_context(self.network)
        stack.enter_context(self.nodes)
        if not self.network:
            self.ways = stack.enter_context(proxies(self.nodes.nodes))
        for server in (self.broker, self.backend):
            stack.callback(server.stop)
            server.start()
        if self.database:
            stack.callback(self.database.remove)
            self.database.start()
            self.database.create()
        settings = {
            **_SETTINGS,
            "broker_url": self._url_at(HUB, self.broker.url),
            "broker_transport_options": self.broker.options,
            "result_backend": self._url_at(HUB, self.backend.url),
            "redlock_nodes": self._addresses(),
            # A commit waits for the disk.
            **({"redlock_node_timeout": 0.5} if self.store else {}),
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
        self.app.conf.update(settings)
        stack.callback(self.app.close)
        self._make_workers(stack, settings)
        self._start_workers()
        self._start_producers(stack, settings)

    def _make_workers(
        self, stack: contextlib.ExitStack, settings: dict[str, Any]
    ) -> None:
        deployments = itertools.cycle(self._deployments())
        for name, pool in zip(_WORKERS, _POOLS, strict=True):
            own = {**settings, "redlock_nodes": next(deployments)}
            worker = Worker(
                "tests.torture.project",
                name,
                folder=self.folder,
                pool=pool,
                concurrency=5 if self.jobs else 3,
                environment=self._environment(own),
                cwd=self.folder,
            )
            if self.network:
                worker.words = self.network.on(name, *worker.words)
            stack.callback(worker.kill)
            self.workers.append(worker)

    def _start_producers(
        self, stack: contextlib.ExitStack, settings: dict[str, Any]
    ) -> None:
        for number in (0, 1):
            name = f"producer-{number}"
            program = Process(
                name,
                [
                    *(sys.executable, "-um", producer.__name__),
                    *(f"{self._seed}-{number}", str(-(-self.jobs // 2)), *self.kinds),
                ],
                log=self.folder / f"{name}.log",
                ready=producer.READY,
                environment=self._environment(settings),
                cwd=self.folder,
            )
            stack.callback(program.kill)
            self.producers.append(program)
            program.start()
        for program in self.producers:
            program.wait_until_ready()

    def _environment(self, settings: dict[str, Any]) -> dict[str, str]:
        return {
            SETTINGS: json.dumps(settings),
            FOLDER: str(self.folder),
            PLANT: self._plant,
            DATABASE: sqlalchemy_url(self.database) if self.database else "",
            "PYTHONPATH": ":".join(map(str, _FOLDERS)),
        }

    def _deployments(self) -> list[list[dict[str, str]]]:
        """Return the nodes of each deployment: there is one, unless it is split."""
        addresses = self._addresses()
        is_split = self._plant == "split"
        return [[address] for address in addresses] if is_split else [addresses]

    def _addresses(self) -> list[dict[str, str]]:
        if self.store:
            return [{"url": self._store_url(), "name": "store"}]
        urls = [way.url for way in self.ways]
        if self.network:
            nodes = zip(NODES, self.nodes.urls, strict=True)
            urls = [self._url_at(*node) for node in nodes]
        return [
            {"url": url, "name": name} for name, url in zip(NODES, urls, strict=True)
        ]

    def _url_at(self, server: str, url: str) -> str:
        """Return the URL of a server for workers."""
        if self.network:
            url = url.replace("127.0.0.1", self.network.address(server))
        return url

    def _store_url(self) -> str:
        """Return the URL of the store by the proxies of its members."""
        url: str = self.nodes.urls[0]
        for node, way in zip(self.nodes.nodes, self.ways, strict=True):
            port = way.url.rpartition(":")[2].partition("/")[0]
            url = url.replace(f":{node.port}", f":{port}")
        return url

    # -- While it runs -------------------------------------------------------

    def spoil(self, number: int, fault: str) -> None:
        """Break the connections to a node: cut off, mute, slow or reset."""
        way = self.ways[number]
        match fault:
            case "cut off":
                way.hold()
            case "mute":
                way.hold_replies()
            case "slow":
                way.delay = _SLOW
            case "reset":
                way.drop()

    def mend(self, number: int) -> None:
        """Repair the connections to a node; the held bytes pass now."""
        self.ways[number].delay = 0.0
        self.ways[number].resume()

    def votes(self, number: int) -> bool:
        """Tell whether a node has the right to vote, by the keys on it."""
        node = self.nodes.nodes[number]
        # redis-py makes a number of it where it looks like one, as that of etcd does.
        replid = str(node.command("INFO", "replication")["master_replid"])
        meta = node.command("HGETALL", f"{_PREFIX}:meta")
        return meta.get("replid") == replid and "votes" in meta

    def look_around(self) -> None:
        """Remember the processes that now exist below the workers."""
        for worker in self.workers:
            with contextlib.suppress(psutil.Error):
                leader = psutil.Process(worker.pid)
                self.seen |= {leader, *leader.children(recursive=True)}

    # -- The end -------------------------------------------------------------

    def heal(self) -> None:
        """Undo all faults, and wait until all processes run."""
        for number in range(len(self.ways)):
            self.mend(number)
        for node in self.nodes.nodes:
            if node.is_running:
                node.resume()
            node.start()
        if self.broker.is_running:
            self.broker.resume()
        self.broker.start()
        if self.database and not self.database.is_running:
            self.database.start()
        for worker in self.workers:
            worker.resume()
        self._start_workers()

    def end_production(self) -> None:
        """End the producers."""
        stop(*self.producers, within=30)

    def send_to_each_key(self) -> None:
        """Send one job for each key: its result shows that the key can be locked."""
        for kind, keys in {"count": COUNTERS, "write": CELLS, "add": SETS}.items():
            for key in keys:
                job = self.app.send_task(kind, (key, 0.05))
                self.journal.note("sent", kind=kind, task_id=job.id)

    def restart_workers(self) -> None:
        """End the workers as a deployment does, and start them again."""
        self.end_workers()
        self._start_workers()

    def end_workers(self) -> list[str]:
        """End the workers by SIGTERM; return the names of those that did not end."""
        self.look_around()
        return [worker.name for worker in stop(*self.workers, within=30)]

    def _start_workers(self) -> None:
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.wait_until_ready()

    def left_behind(self) -> list[str]:
        """Return the processes that have outlived their worker by ten seconds."""
        with contextlib.suppress(AssertionError):
            until(lambda: not any(map(_lives, self.seen)), 10.0)
        return [f"{one.pid}: {_words(one)}" for one in self.seen if _lives(one)]

    def __exit__(self, *_: object) -> None:
        self._everything.close()
        deadline = time.monotonic() + 10
        while any(map(_lives, self.seen)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in filter(_lives, self.seen):
            with contextlib.suppress(psutil.Error):
                process.kill()


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
