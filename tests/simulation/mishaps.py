"""Think up what goes wrong in a history.

Each has a random mix of faults (many have only a few kinds, at most of their
strength): faults of all kinds at once would hide what each of them does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.simulation.plan import Fault

if TYPE_CHECKING:
    from random import Random

__all__ = ["Mishaps"]

_SCRIPTS = (
    *("acquire", "extend", "restore", "raise_fence", "release"),
    *("counters", "sync", "line_up", "step_out"),
)
_AMBUSHES = ("break", "break", "delay", "pause", "death")
_RESET = ("reset",)
_MEMORIES = ("lose", "keep", "rollback")


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What can happen to the nodes and clients of one history.

    Attributes:
        rng: The dice.
        nodes, clients: Their names.
        span: Seconds in which something can happen.
        ttl, max_ttl, node_timeout: As the clients have them.
    """

    rng: Random
    nodes: list[str]
    clients: list[str]
    span: float
    ttl: float
    max_ttl: float
    node_timeout: float

    def of_all_kinds(self) -> list[Fault]:
        """Return some, in the order in which they happen."""
        planners = (
            (0.35, self._crashes),
            (0.20, self._wipes),
            (0.25, self._hangs),
            (0.40, self._network),
            (0.25, self._ambushes),
            (0.45, self._pauses),
            (0.15, self._deaths),
            (0.10, self._interrupts),
            (0.12, self._steps),
            (0.05, self._forgotten_scripts),
        )
        faults: list[Fault] = []
        for chance, planner in planners:
            if self.rng.random() < chance:
                faults += planner()
        return sorted(faults, key=lambda fault: fault.at)

    def _instant(self) -> float:
        return self.rng.random() * self.span

    def _turn(self) -> int:
        """Number of an operation of a client, early ones more often."""
        return int(10 ** self.rng.uniform(0.7, 2.9))

    def _while(self) -> float:
        scale = (0.02, 0.3, 1.0, 1.0, 2.0)
        return self.ttl * self.rng.choice(scale) * self.rng.uniform(0.5, 1.5)

    def _crashes(self) -> list[Fault]:
        rng = self.rng
        faults: list[Fault] = []
        memories = rng.choice((("lose",), ("keep",), ("rollback",), _MEMORIES))
        for _ in range(rng.choice((1, 1, 2, 3))):
            node, at = rng.choice(self.nodes), self._instant()
            memory = rng.choice(memories)
            if memory == "rollback":
                faults.append(Fault("snapshot", at * rng.random(), node))
            how = f"{memory} {rng.choice(('told', 'told', 'silent'))}"
            down = rng.choice((0.01, self._while()))
            if memory != "lose" and rng.random() < 0.3:
                how += " loading"
            faults.append(Fault("crash", at, node, seconds=down, how=how))
        return faults

    def _wipes(self) -> list[Fault]:
        return [
            Fault("flush", self._instant(), self.rng.choice(self.nodes))
            for _ in range(self.rng.choice((1, 1, 2)))
        ]

    def _hangs(self) -> list[Fault]:
        return [
            Fault(
                "hang",
                self._instant(),
                self.rng.choice(self.nodes),
                seconds=self._while(),
            )
            for _ in range(self.rng.choice((1, 2, 4)))
        ]

    def _network(self) -> list[Fault]:
        rng = self.rng
        kinds = rng.choice(
            (("cut",), ("slow",), _RESET, _RESET, (*_RESET, "cut", "slow"))
        )
        faults = []
        for _ in range(rng.choice((1, 3, 6))):
            kind, at, seconds = rng.choice(kinds), self._instant(), self._while()
            many = rng.sample(self.nodes, rng.randint(1, len(self.nodes)))
            nodes = many if rng.random() < 0.5 else many[:1]
            client = rng.choice(self.clients)
            if kind == "reset" and rng.random() < 0.7:
                kind, at = "reset trap", self._turn()
                if rng.random() < 0.5:
                    at = rng.randint(10, 150)
            faults += [Fault(kind, at, client, node, seconds) for node in nodes]
        return faults

    def near_misses(self) -> list[Fault]:
        """Lose one's raise on a node on which the other's vote is held up."""
        rng = self.rng
        one, other = rng.sample(self.clients, 2)
        node, count = rng.choice(self.nodes), rng.choice((1, 1, 2))
        faults = [
            Fault("ambush", count, one, node, 0.0, "raise_fence break"),
            Fault("ambush", count, other, node, self._delay(), "acquire delay"),
        ]
        for _ in range(rng.randint(0, 4)):
            how = rng.choice(
                ("acquire delay", "raise_fence break", "raise_fence delay")
            )
            count, client = rng.choice((1, 2, 3)), rng.choice(self.clients)
            node = rng.choice(self.nodes)
            faults.append(Fault("ambush", count, client, node, self._delay(), how))
        return faults

    def _delay(self) -> float:
        return self.node_timeout * self.rng.uniform(0.2, 1.0)

    def _ambushes(self) -> list[Fault]:
        rng = self.rng
        scripts = rng.choice((_SCRIPTS, _SCRIPTS, ("acquire",), ("raise_fence",)))
        what = rng.choice((("break",), ("delay", "pause"), _AMBUSHES))
        faults = []
        for _ in range(rng.choice((1, 3, 6))):
            how = f"{rng.choice(scripts)} {rng.choice(what)}"
            seconds = self._while()
            if rng.random() < 0.1:
                seconds += 1.1 + 1.02 * self.max_ttl
            count, client = rng.choice((1, 1, 2, 3, 5)), rng.choice(self.clients)
            node = rng.choice(self.nodes)
            faults.append(Fault("ambush", count, client, node, seconds, how))
        return faults

    def _pauses(self) -> list[Fault]:
        rng = self.rng
        faults = []
        for _ in range(rng.choice((1, 2, 4))):
            seconds = self._while()
            if rng.random() < 0.1:
                seconds += 1.1 + 1.02 * self.max_ttl
            if rng.random() < 0.3:
                fault = Fault("pause", self._instant(), rng.choice(self.clients))
            else:
                fault = Fault("pause trap", self._turn(), rng.choice(self.clients))
            faults.append(replace(fault, seconds=seconds))
        return faults

    def _deaths(self) -> list[Fault]:
        rng = self.rng
        how = rng.choice(("killed", "killed", "killed freed", "powered off"))
        fault = Fault("death", self._instant(), rng.choice(self.clients), how=how)
        if rng.random() < 0.7:
            fault = replace(fault, kind="death trap", at=self._turn())
        return [fault]

    def _interrupts(self) -> list[Fault]:
        return [
            Fault("interrupt trap", self._turn(), self.rng.choice(self.clients))
            for _ in range(self.rng.choice((1, 3)))
        ]

    def _steps(self) -> list[Fault]:
        rng = self.rng
        faults = []
        for _ in range(rng.choice((1, 1, 3))):
            far = rng.choice((self.ttl / 3, self.max_ttl * 2, 3600.0))
            seconds = rng.uniform(-far, far)
            on = rng.choice(self.clients if rng.random() < 0.4 else self.nodes)
            faults.append(Fault("step", self._instant(), on, seconds=seconds))
        return faults

    def _forgotten_scripts(self) -> list[Fault]:
        return [
            Fault("forget scripts", self._instant(), self.rng.choice(self.nodes))
            for _ in range(2)
        ]
