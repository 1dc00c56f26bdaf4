"""Faults at random: a seed chooses them, the journal names them, each is undone.

At most two nodes and two workers are disturbed at once, and at most two nodes have no
vote because they restarted. Within these bounds fences must grow from grant to grant.
Sometimes a majority of the nodes hangs, and then no other node is disturbed.

On a network of namespaces no bound protects the links of nodes (see ``links``). There
no node forgets, so fences must grow also when the clocks of nodes are stepped.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.exceptions import OperationalError

from celery_redlock.errors import RedlockError
from tests.harness.commands import Worker
from tests.harness.processes import descendants
from tests.torture import LONG
from tests.torture.histories import STEP, STEP_TAKES
from tests.torture.links import LinkFault, LinkFaults
from tests.torture.site import NODES, TTL, Site

_MEAN_PAUSE = 0.9  # seconds between two faults
_TICK = 0.05
_FENCED = "write", "add"  # tasks whose late writes only the fence refuses
_BUSY = 0.8  # the share of faults that hit a child with a running body
_MOST_NODES, _MOST_WORKERS = 2, 2
_MOST_LINKS = 6  # faults of links at once
_SHORTEST, _LONGEST = 1.2 * TTL, 2.2 * TTL  # seconds of a pause


class Faults:
    """Disturbs a site for a while.

    Attributes:
        counts: The number of faults of each kind; 0 of one that never was.
        ended: The number of workers that ended by themselves.
    """

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._order = itertools.count()
        self._schedule: list[tuple[float, int, Callable[[], None]]] = []
        self._nodes: set[int] = set()
        self._workers: set[Worker] = set()
        self._broker = False
        self._links = 0
        self._voteless: set[int] = set()
        self._fresh: list[str] = []
        self._bodies: dict[str, tuple[int, str]] = {}
        self._sent = 0
        self.counts: Counter[str] = Counter()
        self.ended = 0
        self._kinds: dict[str, tuple[int, Callable[[], bool]]] = {
            "worker killed": (7, self._kill_worker),
            "child killed": (10, self._kill_child),
            "child frozen": (10, lambda: self._freeze(child=True)),
            "worker frozen": (8, lambda: self._freeze(child=False)),
            "node frozen": (7, lambda: self._freeze_nodes(1)),
            "majority frozen": (2, lambda: self._freeze_nodes(3)),
            "job revoked": (4, lambda: self._revoke(terminate=False)),
            "job revoked and terminated": (5, lambda: self._revoke(terminate=True)),
            "broker killed, back with memory": (2, self._kill_broker),
            "broker frozen": (2, self._freeze_broker),
        }

        self._kinds |= self._of_network() if site.network else self._of_proxies()
        self._numbers = set(range(len(site.nodes.nodes)))
        if site.store:  # it always has a memory
            del self._kinds["node killed, back empty"]
        if len(self._numbers) == 1:
            del self._kinds["majority frozen"], self._kinds["majority cut off"]
        if site.has_standby:
            self._kinds["standby promoted"] = (10, self._promote_standby)
        if site.database:
            self._kinds["database killed"] = (12, self._kill_database)
        self.counts.update(dict.fromkeys(self._kinds, 0))

    def _of_proxies(self) -> dict[str, tuple[int, Callable[[], bool]]]:
        return {
            "node killed, back empty": (5, lambda: self._kill_node(keep=False)),
            "node killed, back with memory": (5, lambda: self._kill_node(keep=True)),
            "node cut off": (6, lambda: self._spoil_nodes(1, "cut off")),
            "replies of a node held": (5, lambda: self._spoil_nodes(1, "mute")),
            "node slow": (5, lambda: self._spoil_nodes(1, "slow")),
            "connections reset": (4, self._reset_node),
            "majority cut off": (2, lambda: self._spoil_nodes(3, "cut off", "mute")),
        }

    def _of_network(self) -> dict[str, tuple[int, Callable[[], bool]]]:
        network = self._site.network
        assert network
        links = LinkFaults(network, self._random)
        kinds: dict[str, tuple[int, Callable[[], bool]]] = {
            kind: (weight, partial(self._break_links, harm))
            for kind, (weight, harm) in links.kinds.items()
        }
        if self._site.clocks:
            kinds["clock of a node stepped"] = (8, lambda: self._step_clocks(1))
            kinds["clocks of a majority stepped"] = (2, lambda: self._step_clocks(3))
        return kinds

    def run(self, seconds: float, jobs: int = 0) -> float:
        """Disturb for this number of seconds, then undo the faults that are left.

        Args:
            seconds: For how long.
            jobs: If given, stop as soon as so many jobs were sent.

        Returns:
            The seconds of faults.
        """
        start = now = time.monotonic()
        end, due = now + seconds, now + 2
        while (now := time.monotonic()) < end and not 0 < jobs <= self._sent:
            self._undo(now)
            self._supervise()
            self._read_journal()
            if now >= due:
                self._site.look_around()
                self._disturb()
                due = now + self._random.expovariate(1 / _MEAN_PAUSE)
            time.sleep(_TICK)
        self._undo(float("inf"))
        return round(now - start, 1)

    def _supervise(self) -> None:
        """Start a worker again that has ended by itself, as any deployment does.

        Celery's Redis consumer can end by itself when the broker refuses connections.
        """
        for worker in self._site.workers:
            if not worker.is_running and worker not in self._workers:
                self.ended += 1
                worker.start()

    def _disturb(self) -> None:
        weights = [weight for weight, _ in self._kinds.values()]
        (kind,) = self._random.choices([*self._kinds], weights)
        if self._kinds[kind][1]():
            self.counts[kind] += 1
            self._site.journal.note("fault", kind=kind)

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        entry = (time.monotonic() + seconds, next(self._order), undo)
        heapq.heappush(self._schedule, entry)

    def _undo(self, until: float) -> None:
        while self._schedule and self._schedule[0][0] <= until:
            heapq.heappop(self._schedule)[2]()
        for number in [*self._voteless - self._nodes]:
            with contextlib.suppress(RedlockError):
                if self._site.votes(number):
                    self._voteless.discard(number)

    def _read_journal(self) -> None:
        for line in self._site.journal.news():
            if line["event"] in ("sent", "began"):
                self._fresh = [*self._fresh[-11:], line["task_id"]]
            self._sent += line["event"] == "sent"
            if line["event"] == "began":
                self._bodies[line["run"]] = line["pid"], line["name"]
            elif line["event"] == "ended":
                self._bodies.pop(line["run"], None)

    # -- Workers ---------------------------------------------------------------

    def _worker(self) -> Worker | None:
        well = [one for one in self._site.workers if one not in self._workers]
        if len(self._workers) >= _MOST_WORKERS or not well:
            return None
        worker = self._random.choice(well)
        return worker if worker.is_running else None

    def _child(self, *names: str) -> tuple[Worker, int] | None:
        """Choose a child, mostly one that runs a body, and one of these if it can."""
        worker = self._worker()
        if worker is None or worker.pool != "prefork":
            return None
        children = descendants(worker.pid)
        busy = {pid: name for pid, name in self._bodies.values() if pid in children}
        # Some faults hit an idle child: it may be about to ack, or to begin.
        if busy and self._random.random() < _BUSY:
            named = [pid for pid, name in busy.items() if name in names]
            children = named or [*busy]
        return (worker, self._random.choice(children)) if children else None

    def _kill_worker(self) -> bool:
        worker = self._worker()
        if worker is None:
            return False
        self._workers.add(worker)
        self._site.journal.note("killing", victim=worker.pid)
        worker.signal(signal.SIGKILL)

        def start() -> None:
            with contextlib.suppress(RedlockError):  # the verdicts count it
                worker.wait()  # its children end, too
            worker.start()
            self._later(8, lambda: self._workers.discard(worker))  # it starts up

        self._later(self._random.uniform(0.2, 2), start)
        return True

    def _kill_child(self) -> bool:
        found = self._child()
        if found is None:
            return False
        self._site.journal.note("killing", victim=found[1])
        self._signal(found[1], signal.SIGKILL)
        return True

    def _freeze(self, *, child: bool) -> bool:
        found = self._child(*_FENCED) if child else None
        worker = found[0] if found else self._worker()
        if worker is None or (child and not found):
            return False
        pid = found[1] if found else worker.pid
        self._workers.add(worker)
        self._site.journal.note("freezing", victim=pid)
        self._signal(pid, signal.SIGSTOP)

        def thaw() -> None:
            self._signal(pid, signal.SIGCONT)
            self._site.journal.note("thawed", victim=pid)
            self._workers.discard(worker)

        self._later(self._random.uniform(_SHORTEST, _LONGEST), thaw)
        return True

    @staticmethod
    def _signal(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    # -- Nodes -----------------------------------------------------------------

    def _some_nodes(self, count: int) -> list[int]:
        """Choose nodes: a minority among those in order, or a majority of all."""
        away = self._nodes | self._voteless
        most = min(_MOST_NODES, len(self._numbers))
        if away and (count > most or len(away) >= most):
            return []
        return self._random.sample(sorted(self._numbers - away), count)

    def _break_nodes(
        self,
        count: int,
        harm: Callable[[int], None],
        repair: Callable[[int], None],
        seconds: tuple[float, float],
        then: float = 0.0,
    ) -> bool:
        """Do something to nodes, and repair them after a time between these seconds.

        For some seconds ``then``, nothing else is done to them.
        """
        numbers = self._some_nodes(count)
        if not numbers:
            return False
        self._nodes |= {*numbers}
        for number in numbers:
            harm(number)

        def undo() -> None:
            for number in numbers:
                repair(number)
            self._later(then, lambda: self._nodes.difference_update(numbers))

        self._later(self._random.uniform(*seconds), undo)
        return True

    def _kill_node(self, *, keep: bool) -> bool:
        nodes = self._site.nodes.nodes

        def kill(number: int) -> None:
            self._voteless.add(number)
            nodes[number].kill()

        def start(number: int) -> None:
            nodes[number].restart(keep_memory=keep)

        return self._break_nodes(1, kill, start, (0.2, 3))

    def _promote_standby(self) -> bool:
        nodes = self._site.nodes

        def fail(number: int) -> None:
            self._voteless.add(number)
            nodes.fail()

        return self._break_nodes(1, fail, lambda _: nodes.promote(), (0.2, 3))

    def _freeze_nodes(self, count: int) -> bool:
        nodes = self._site.nodes.nodes
        return self._break_nodes(
            count,
            lambda number: nodes[number].pause(),
            lambda number: nodes[number].resume(),
            (_SHORTEST, _LONGEST),
        )

    def _spoil_nodes(self, count: int, *faults: str) -> bool:
        fault, site = self._random.choice(faults), self._site
        return self._break_nodes(
            count, lambda number: site.spoil(number, fault), site.mend, (0.5, _LONGEST)
        )

    def _reset_node(self) -> bool:
        numbers = self._some_nodes(1)
        for number in numbers:
            self._site.spoil(number, "reset")
        return bool(numbers)

    def _step_clocks(self, count: int) -> bool:
        """Step clocks, and step them back later: one of both steps is forward.

        A node is not frozen before it has read its clock.
        """

        def step(number: int) -> None:
            forward = self._random.choice([-1, 1])
            self._set_clock(number, forward * self._random.uniform(0.5, 4 * TTL))

        def back(number: int) -> None:
            self._set_clock(number, 0.0)

        return self._break_nodes(
            count, step, back, (STEP_TAKES, 4 * TTL), then=STEP_TAKES
        )

    def _set_clock(self, number: int, offset: float) -> None:
        clock = self._site.clocks[number]
        self._site.journal.note(STEP, node=NODES[number], step=offset - clock.offset)
        clock.set(offset)

    def _break_links(self, harm: LinkFault) -> bool:
        if self._links >= _MOST_LINKS:
            return False
        links, undo = harm()
        self._links += 1
        self._site.journal.note("links", links=links)

        def end() -> None:
            undo()
            self._links -= 1

        self._later(self._random.uniform(0.5, _LONGEST), end)
        return True

    # -- Broker and jobs ---------------------------------------------------------

    def _revoke(self, *, terminate: bool) -> bool:
        if not self._fresh or self._broker:
            return False
        task_id = self._random.choice(self._fresh)
        self._site.journal.note("revoking", task_id=task_id)
        options: dict[str, Any] = {"signal": "SIGKILL"} if terminate else {}
        with contextlib.suppress(OperationalError, OSError):
            self._site.app.control.revoke(task_id, terminate=terminate, **options)
        return True

    def _kill_broker(self) -> bool:
        broker = self._site.broker
        return self._break_broker(broker.kill, broker.start, (0.2, 2))

    def _freeze_broker(self) -> bool:
        broker = self._site.broker
        return self._break_broker(broker.pause, broker.resume, (1, TTL))

    def _kill_database(self) -> bool:
        # Its jobs retry themselves. Celery ends a job for good if the broker does not
        # accept that, so the broker is well until the last of them has seen the error.
        database = self._site.database
        assert database
        return self._break_broker(
            database.kill, database.start, (0.2, 2), then=LONG + 3
        )

    def _break_broker(
        self,
        harm: Callable[[], None],
        repair: Callable[[], None],
        seconds: tuple[float, float],
        then: float = 0.0,
    ) -> bool:
        if self._broker:
            return False
        self._broker = True
        harm()

        def be_well() -> None:
            self._broker = False

        def undo() -> None:
            repair()
            self._later(then, be_well)

        self._later(self._random.uniform(*seconds), undo)
        return True
