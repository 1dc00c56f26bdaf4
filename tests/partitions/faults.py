"""Faults at random: a seed chooses them, the journal names them, each is undone.

No bound protects the locks: a majority may be cut off, frozen or have its clocks
stepped. A host has one fault of a kind at a time, and a node whose clock was stepped is
not frozen before it has read its clock.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tests.partitions.site import NODES, STORE, TTL, WORKERS, Site

STEP = "step"  # the event in the journal
STEP_TAKES = 0.5  # seconds within which a node surely reads its stepped clock
_MEAN_PAUSE = 0.8  # seconds between two faults
_MOST = 6  # faults at once
_TICK = 0.05
_SHORTEST, _LONGEST = 0.5, 2.5 * TTL  # seconds of a fault
_PAUSES = 0.6 * TTL, 2.5 * TTL  # seconds of a frozen process


class Faults:
    """Disturbs a site for a while.

    Attributes:
        counts: The number of faults of each kind.
    """

    def __init__(self, site: Site, seed: int) -> None:
        self._site, self._network = site, site.network
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._running: list[tuple[float, set[str], list[Callable[[], object]]]] = []
        self.counts: Counter[str] = Counter()
        self._kinds: dict[str, tuple[int, Callable[[], bool]]] = {
            "link to a node cut": (6, lambda: self._cut(both=True)),
            "link to a node cut one way": (8, lambda: self._cut(both=False)),
            "node cut off": (5, lambda: self._isolate(NODES)),
            "worker cut off": (4, lambda: self._isolate(WORKERS)),
            "network split in two": (5, self._split),
            "host slow": (5, lambda: self._slow(100)),
            "host with reordered packets": (6, lambda: self._slow(30)),
            "host with lost packets": (6, self._lose),
            "connections to a node stalled": (7, lambda: self._stall([*NODES])),
            "connections to the store stalled": (6, lambda: self._stall([STORE])),
            "link to the store cut": (4, self._cut_store),
            "node frozen": (5, lambda: self._freeze(NODES, 1)),
            "majority of the nodes frozen": (2, lambda: self._freeze(NODES, 3)),
            "worker frozen": (12, lambda: self._freeze(WORKERS, 1)),
        }
        if site.has_clocks:
            self._kinds |= {
                "clock of a node stepped": (8, lambda: self._step(1)),
                "clocks of a majority stepped": (2, lambda: self._step(3)),
            }

    def run(self, seconds: float) -> None:
        """Disturb for this number of seconds, then undo the faults that are left."""
        now = time.monotonic()
        end, due = now + seconds, now + 1
        try:
            while (now := time.monotonic()) < end:
                self._undo(now)
                if now >= due:
                    if len(self._running) < _MOST:
                        self._disturb()
                    due = now + self._random.expovariate(1 / _MEAN_PAUSE)
                time.sleep(_TICK)
        finally:
            self._undo(float("inf"))

    def _disturb(self) -> None:
        weights = [weight for weight, _ in self._kinds.values()]
        (kind,) = self._random.choices([*self._kinds], weights)
        if self._kinds[kind][1]():
            self.counts[kind] += 1
            targets = sorted(self._running[-1][1])
            self._site.journal.note("fault", kind=kind, targets=targets)

    def _later(
        self,
        targets: set[str],
        undoes: Sequence[Callable[[], object]],
        seconds: tuple[float, float] = (_SHORTEST, _LONGEST),
    ) -> bool:
        due = time.monotonic() + self._random.uniform(*seconds)
        self._running.append((due, targets, [*undoes]))
        return True

    def _undo(self, until: float) -> None:
        for entry in [*self._running]:
            due, targets, undoes = entry
            if due <= until:
                self._running.remove(entry)
                for undo in undoes:
                    undo()
                self._site.journal.note("undone", targets=sorted(targets))

    def _targets(self, names: Sequence[str], count: int, what: str) -> list[str]:
        """Choose targets that do not have a fault of this kind; none if too few."""
        busy = set[str]().union(*(targets for _, targets, _ in self._running))
        well = [name for name in names if f"{what} {name}" not in busy]
        return self._random.sample(well, count) if len(well) >= count else []

    # -- Links -----------------------------------------------------------------------

    def _cut(self, *, both: bool) -> bool:
        ends = [self._random.choice(WORKERS), self._random.choice(NODES)]
        self._random.shuffle(ends)
        return self._block([(ends[0], ends[1])], both=both)

    def _cut_store(self) -> bool:
        ends = [self._random.choice(WORKERS), STORE]
        self._random.shuffle(ends)
        return self._block([(ends[0], ends[1])], both=self._random.random() < 0.5)

    def _isolate(self, names: Sequence[str]) -> bool:
        one = self._random.choice(names)
        others = [name for name in (*NODES, *WORKERS) if name != one]
        return self._block([(one, other) for other in others], both=True)

    def _split(self) -> bool:
        ours = self._random.sample(NODES, self._random.choice([1, 2]))
        ours += self._random.sample(WORKERS, 2)
        theirs = [name for name in (*NODES, *WORKERS) if name not in ours]
        pairs = [(one, other) for one in ours for other in theirs]
        return self._block(pairs, both=True)

    def _block(self, pairs: list[tuple[str, str]], *, both: bool) -> bool:
        if both:
            pairs = [*pairs, *((other, one) for one, other in pairs)]
        undoes = [self._network.block(*pair) for pair in pairs]
        return self._later({f"{one} to {other}" for one, other in pairs}, undoes)

    def _slow(self, percent: int) -> bool:
        for host in self._targets([*NODES, *WORKERS, STORE], 1, "pace"):
            kbit = self._random.choice([8, 16, 32, 64])
            undo = self._network.slow(host, kbit, percent)
            return self._later({f"pace {host}"}, [undo])
        return False

    def _lose(self) -> bool:
        for host in self._targets([*NODES, *WORKERS, STORE], 1, "loss"):
            undo = self._network.lose(host, self._random.choice([5, 15, 40]))
            return self._later({f"loss {host}"}, [undo])
        return False

    def _stall(self, servers: list[str]) -> bool:
        worker, server = self._random.choice(WORKERS), self._random.choice(servers)
        pid = self._site.processes[worker].pid
        undo = self._network.stall(worker, server, pid)
        return self._later({f"stall {worker} {server}"}, [undo])

    # -- Processes and clocks --------------------------------------------------------

    def _freeze(self, names: Sequence[str], count: int) -> bool:
        chosen = self._targets(names, count, "process")
        processes = [self._site.processes[name] for name in chosen]
        for process in processes:
            process.pause()
        targets = {f"process {name}" for name in chosen}
        undoes = [process.resume for process in processes]
        return bool(chosen) and self._later(targets, undoes, _PAUSES)

    def _step(self, count: int) -> bool:
        """Step clocks, and step them back later: one of both steps is forward."""
        chosen = self._targets(NODES, count, "process")
        targets = {f"process {name}" for name in chosen}
        for name in chosen:
            offset = self._random.choice([-1, 1]) * self._random.uniform(0.5, 4 * TTL)
            self._set_clock(name, offset, offset)
            back = [lambda name=name, step=-offset: self._set_clock(name, 0.0, step)]
            self._later({f"clock {name}"}, back, (STEP_TAKES, 4 * TTL))
        # The nodes are not frozen before they have read their clocks.
        return bool(chosen) and self._later(targets, [], (4 * TTL + STEP_TAKES,) * 2)

    def _set_clock(self, name: str, offset: float, step: float) -> None:
        self._site.journal.note(STEP, node=name, step=step)
        self._site.set_clock(name, offset)
