"""What a history consists of: everything that is decided before it begins.

A plan is made from a seed and is plain data, so that the minimiser can leave
things out and try again. Each plan has a random mix of faults (many have only a
few kinds, at most of their strength): faults of all kinds at once would hide
what each of them does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from celery_redlock.core.ballot import quorum_of
from tests.simulation.network import Weather

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ClientPlan", "Fault", "NodePlan", "Operation", "Plan", "plan_of"]

KEYS = ("a", "k1065")  # they share a stripe
LARGEST_DRIFT = 0.00499  # of two clocks together less than 1 %, as is assumed
_COUNTS = (1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a client does.

    Attributes:
        kind: A method of ``clients.Task``.
        key: Of which lock.
        after: Seconds to pause before.
        hold: Seconds to hold the lock.
        ttl: Seconds, or None for the service's.
        wait: Seconds to keep trying.
        keep: ``hold_at_least`` in seconds.
        obeys: Whether it ends its body when the lock was lost.
        renews: Whether the watchdog renews.
    """

    kind: str
    key: str
    after: float
    hold: float
    ttl: float | None = None
    wait: float = 0.0
    keep: float = 0.0
    obeys: bool = True
    renews: bool = True

    def __str__(self) -> str:
        parts = [f"{self.after:.3f} s later {self.kind} {self.key!r}"]
        parts += [f"for {self.hold:.3f} s"] if self.hold else []
        parts += [f"ttl {self.ttl:g}"] if self.ttl else []
        parts += [f"wait {self.wait:.3f}"] if self.wait else []
        parts += [f"keep {self.keep:.3f}"] if self.keep else []
        parts += [] if self.obeys else ["deaf to losses"]
        parts += [] if self.renews else ["not renewed"]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client process.

    Attributes:
        name: Of the process.
        rate: Seconds that its clocks count in a second.
        skew: Seconds by which its wall clock is ahead.
        tasks: What each of its threads does, one thing after the other.
        weather: Of the network around it.
    """

    name: str
    rate: float
    skew: float
    tasks: tuple[tuple[Operation, ...], ...]
    weather: Weather


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: how its clock runs."""

    name: str
    rate: float
    skew: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: See ``faults.KINDS``.
        at: Seconds since the start; for a trap the number of the client's
            operation, and for an ambush that of its message, at which it happens.
        on: The node or the client.
        peer: The other end, where it happens to the way between the two.
        seconds: For how long, or by how much.
        how: Which variety.
    """

    kind: str
    at: float
    on: str
    peer: str = ""
    seconds: float = 0.0
    how: str = ""

    def __str__(self) -> str:
        where = f"{self.on}–{self.peer}" if self.peer else self.on
        when = f"{self.at:.4f}"
        if self.kind == "ambush":
            when = f"message {self.at:g}"
        elif "trap" in self.kind:
            when = f"operation {self.at:g}"
        much = f", {self.seconds:+.3f} s" if self.seconds else ""
        return f"{when}  {where} {self.kind}{much}{f', {self.how}' if self.how else ''}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A history that has not happened yet.

    Attributes:
        seed: From which it was made; also of the network's dice.
        initialized: Whether the nodes vote from the start.
        probes: For each lock that is taken at the very end, the nodes that can
            be reached for it.
        is_calm: Whether nothing goes wrong, so that more can be asked for.
    """

    seed: int
    nodes: tuple[NodePlan, ...]
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    ttl: float
    max_ttl: float
    node_timeout: float
    connect_timeout: float
    initialized: bool
    probes: tuple[tuple[str, ...], ...]
    is_calm: bool

    @property
    def keys(self) -> list[str]:
        """The locks that somebody wants."""
        return sorted(
            {
                operation.key
                for client in self.clients
                for task in client.tasks
                for operation in task
            }
        )

    @property
    def clocks_sane(self) -> bool:
        """Whether the nodes agree about what time it is."""
        skews = [node.skew for node in self.nodes]
        return max(skews) - min(skews) <= self.max_ttl / 8

    def without(self, **parts: object) -> Plan:
        """Return a copy in which something is different."""
        return replace(self, **parts)  # type: ignore[arg-type]

    def __str__(self) -> str:
        start = "" if self.initialized else ", not initialized"
        head = (
            f"seed {self.seed}: {len(self.nodes)} nodes, ttl {self.ttl:g} s, max_ttl "
            f"{self.max_ttl:g} s, node time-out {self.node_timeout:g} s{start}"
        )
        lines = [head]
        lines += [
            f"  {node.name}  clock × {node.rate:.5f}, {node.skew:+.3f} s"
            for node in self.nodes
        ]
        for client in self.clients:
            lines.append(
                f"  {client.name}  clock × {client.rate:.5f}, {client.skew:+.3f} s"
            )
            for task in client.tasks:
                lines.append("      thread:")
                lines += [f"        {operation}" for operation in task]
        lines += [f"  fault: {fault}" for fault in self.faults]
        return "\n".join(lines)


def plan_of(seed: int, style: str = "") -> Plan:
    """Return the plan that belongs to a seed.

    Args:
        seed: Any number.
        style: What its clients are like; any by default. See ``_STYLES``.
    """
    return _Planner(seed, style).plan()


# What the clients of a history are like: seldom calm (nothing goes wrong), doing
# all sorts of things, running bodies as people do, letting locks lapse while
# others wait for them, storming at one lock over an unsteady network, or meeting
# at it at one moment while connections break.
_STYLES = ("calm", "mixed", "run", "lapse", "storm", "duel")
_WEIGHTS = (4, 26, 20, 14, 14, 22)


class _Planner:
    def __init__(self, seed: int, style: str) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)  # noqa: S311  (a seed is the point)
        (any_style,) = rng.choices(_STYLES, _WEIGHTS)
        self.style = style or any_style
        self.is_calm = self.style == "calm"
        self.ttl = rng.choice((0.3, 0.3, 0.5, 1.0, 2.0))
        if self.style == "lapse":
            self.ttl = rng.choice((0.5, 2.0))
        self.max_ttl = self.ttl * rng.choice((1, 1, 1, 2))
        self.node_timeout = rng.choice((0.02, 0.05, 0.05))
        self.connect_timeout = rng.choice((0.1, 0.3))
        self.names = [f"n{i}" for i in range(rng.choice(_COUNTS))]
        if self.style == "duel":
            self.names = self.names[: rng.choice((3, 3, 3, 4, 5))]
        self.keys = KEYS if rng.random() < 0.15 else KEYS[:1]
        self.drift = LARGEST_DRIFT * rng.choice((0.0, 1.0, 1.0))
        self.span = 0.0
        self.duration = self.ttl * rng.choice((1.0, 2.0, 3.0))

    def plan(self) -> Plan:
        rng = self.rng
        node_skew = rng.choice((0.0, 0.01, 0.01, 0.1 * self.max_ttl, 3.0))
        if self.style == "duel":
            node_skew = 0.01  # counters begin unlike
        fast = self.style == "lapse" and rng.random() < 0.5
        nodes = tuple(
            NodePlan(
                name,
                1.0 + self.drift if fast else self._rate(),
                rng.uniform(-node_skew, node_skew),
            )
            for name in self.names
        )
        clients = self._clients()
        self.span = 0.01 + max(
            sum(each.after + each.hold + each.wait / 2 for each in task)
            for client in clients
            for task in client.tasks
        )
        quorum = quorum_of(len(self.names))
        return Plan(
            seed=self.seed,
            nodes=nodes,
            clients=clients,
            faults=() if self.is_calm else tuple(self._faults(clients)),
            ttl=self.ttl,
            max_ttl=self.max_ttl,
            node_timeout=self.node_timeout,
            connect_timeout=self.connect_timeout,
            initialized=self.is_calm or rng.random() < 0.9,
            probes=tuple(
                tuple(sorted(rng.sample(self.names, quorum)))
                for _ in range(1 if quorum == len(self.names) else 2)
            ),
            is_calm=self.is_calm,
        )

    def _rate(self) -> float:
        return 1.0 + self.rng.choice((-1, 1)) * self.drift * self.rng.choice((1, 1, 0))

    # -- clients -----------------------------------------------------------------

    def _clients(self) -> tuple[ClientPlan, ...]:
        rng = self.rng
        count = rng.choice((1, 2, 2, 2, 3, 3, 4))
        far = rng.choice((0.01, 0.01, self.max_ttl, 3600.0))
        if self.style in ("lapse", "storm", "duel"):
            count = max(2, min(count, 3))
            far = rng.choice((far, far, 3600.0))  # so that hints do not count
        if self.style == "duel":
            far = 3600.0
        weather = self._weather()
        return tuple(
            ClientPlan(
                name=f"c{i}",
                rate=self._rate(),
                skew=rng.uniform(-far, far),
                tasks=tuple(
                    self._operations() for _ in range(2 if rng.random() < 0.15 else 1)
                ),
                weather=weather,
            )
            for i in range(count)
        )

    def _weather(self) -> Weather:
        rng, timeout = self.rng, self.node_timeout
        longest = rng.choice((0.001, 0.001, 0.005, timeout / 3))
        if self.is_calm:
            return Weather(0.0002, longest)
        if self.style in ("storm", "duel"):
            # Some messages take long, but not so long that nobody waits for them.
            spikes, spike = rng.choice((0.1, 0.3)), rng.choice((0.5, 0.9)) * timeout
            return Weather(0.0002, rng.choice((0.001, 0.005)), spikes, spike)
        return Weather(
            0.0002,
            longest,
            rng.choice((0.0, 0.0, 0.02, 0.1)),
            rng.choice((1.0, 4.0)) * timeout,
            rng.choice((0.0, 0.0, 0.0, 0.02)),
        )

    def _operations(self) -> tuple[Operation, ...]:
        rng = self.rng
        if self.style == "duel":
            return self._meeting()
        most = {"storm": 4, "calm": 2}.get(self.style, 3)
        eager = rng.random() < 0.5
        operations: list[Operation] = []
        spent = 0.0
        while spent < self.duration and len(operations) < most:
            operation = self._operation(eager=eager)
            operations.append(operation)
            spent += operation.after + operation.hold
        return tuple(operations)

    def _meeting(self) -> tuple[Operation, ...]:
        """Connect first, then come to the lock at the same moment as others."""
        rng = self.rng
        first = Operation("look", self.keys[0], 0.0, 0.0)
        then = Operation("run", self.keys[0], 0.2 + 0.005 * rng.random(), 0.0)
        again = replace(then, after=0.01 * rng.random(), hold=0.002 * rng.random())
        return (first, then, again, replace(again, after=0.01 * rng.random()))

    def _operation(self, *, eager: bool) -> Operation:
        rng, ttl = self.rng, self.ttl
        operation = Operation(
            kind="run",
            key=rng.choice(self.keys),
            after=rng.random() * (0.05 if eager else 0.5) * ttl,
            hold=ttl * rng.choice((0.02, 0.1, 0.5, 1.2)) * rng.random(),
            ttl=self._ttl(),
            wait=rng.choice((0.0, 0.0, 0.3, 1.0)) * ttl,
            keep=rng.choice((0, 0, 0, 0, 0, 0.5)) * ttl,
            obeys=rng.random() < 0.7,
            renews=rng.random() < 0.85,
        )
        if self.style == "calm":
            return replace(operation, wait=30 * ttl)
        if self.style == "mixed" or rng.random() < 0.1:
            return replace(operation, kind=rng.choice(_MIXED))
        if self.style == "storm":
            after, hold = 0.01 * ttl * rng.random(), 0.02 * ttl * rng.random()
            wait = rng.choice((0.0, 0.3)) * ttl
            return replace(operation, after=after, hold=hold, wait=wait, keep=0.0)
        if self.style == "lapse":
            if rng.random() < 0.4:
                return replace(operation, wait=rng.choice((1.0, 1.6)) * ttl, keep=0.0)
            hold, renews = ttl * rng.uniform(0.8, 1.5), rng.random() < 0.2
            return replace(operation, hold=hold, renews=renews, obeys=False, keep=0.0)
        return operation

    def _ttl(self) -> float | None:
        if self.rng.random() < 0.8:
            return None
        return self.rng.choice((self.max_ttl, max(self.ttl / 2, 0.2)))

    # -- faults ------------------------------------------------------------------

    def _faults(self, clients: Sequence[ClientPlan]) -> list[Fault]:
        rng = self.rng
        if self.style == "duel" and rng.random() < 0.9:
            return self._near_misses([client.name for client in clients])
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
            if rng.random() < chance:
                faults += planner([client.name for client in clients])
        return sorted(faults, key=lambda fault: fault.at)

    def _instant(self) -> float:
        return self.rng.random() * self.span

    def _turn(self) -> int:
        """Number of an operation of a client, early ones more often."""
        return int(10 ** self.rng.uniform(0.7, 2.9))

    def _while(self) -> float:
        scale = (0.02, 0.3, 1.0, 1.0, 2.0)
        return self.ttl * self.rng.choice(scale) * self.rng.uniform(0.5, 1.5)

    def _crashes(self, __: list[str]) -> list[Fault]:
        rng = self.rng
        faults: list[Fault] = []
        memories = rng.choice((("lose",), ("keep",), ("rollback",), _MEMORIES))
        for _ in range(rng.choice((1, 1, 2, 3))):
            node, at = rng.choice(self.names), self._instant()
            memory = rng.choice(memories)
            if memory == "rollback":
                faults.append(Fault("snapshot", at * rng.random(), node))
            how = f"{memory} {rng.choice(('told', 'told', 'silent'))}"
            down = rng.choice((0.01, self._while()))
            if memory != "lose" and rng.random() < 0.3:
                how += " loading"
            faults.append(Fault("crash", at, node, seconds=down, how=how))
        return faults

    def _wipes(self, __: list[str]) -> list[Fault]:
        return [
            Fault("flush", self._instant(), self.rng.choice(self.names))
            for _ in range(self.rng.choice((1, 1, 2)))
        ]

    def _hangs(self, __: list[str]) -> list[Fault]:
        return [
            Fault(
                "hang",
                self._instant(),
                self.rng.choice(self.names),
                seconds=self._while(),
            )
            for _ in range(self.rng.choice((1, 2, 4)))
        ]

    def _network(self, clients: list[str]) -> list[Fault]:
        rng = self.rng
        kinds = rng.choice(
            (("cut",), ("slow",), _RESET, _RESET, (*_RESET, "cut", "slow"))
        )
        faults = []
        for _ in range(rng.choice((1, 3, 6))):
            kind, at, seconds = rng.choice(kinds), self._instant(), self._while()
            many = rng.sample(self.names, rng.randint(1, len(self.names)))
            nodes = many if rng.random() < 0.5 else many[:1]
            client = rng.choice(clients)
            if kind == "reset" and rng.random() < 0.7:
                kind, at = "reset trap", self._turn()
                if rng.random() < 0.5:
                    at = rng.randint(10, 150)
            faults += [Fault(kind, at, client, node, seconds) for node in nodes]
        return faults

    def _near_misses(self, clients: list[str]) -> list[Fault]:
        """Lose one's raise on a node on which the other's vote is held up."""
        rng = self.rng
        one, other = rng.sample(clients, 2)
        node, count = rng.choice(self.names), rng.choice((1, 1, 2))
        faults = [
            Fault("ambush", count, one, node, 0.0, "raise_fence break"),
            Fault("ambush", count, other, node, self._delay(), "acquire delay"),
        ]
        for _ in range(rng.randint(0, 4)):
            how = rng.choice(
                ("acquire delay", "raise_fence break", "raise_fence delay")
            )
            count, client = rng.choice((1, 2, 3)), rng.choice(clients)
            node = rng.choice(self.names)
            faults.append(Fault("ambush", count, client, node, self._delay(), how))
        return faults

    def _delay(self) -> float:
        return self.node_timeout * self.rng.uniform(0.2, 1.0)

    def _ambushes(self, clients: list[str]) -> list[Fault]:
        rng = self.rng
        scripts = rng.choice((_SCRIPTS, _SCRIPTS, ("acquire",), ("raise_fence",)))
        what = rng.choice((("break",), ("delay", "pause"), _AMBUSHES))
        faults = []
        for _ in range(rng.choice((1, 3, 6))):
            how = f"{rng.choice(scripts)} {rng.choice(what)}"
            seconds = self._while()
            if rng.random() < 0.1:
                seconds += 1.1 + 1.02 * self.max_ttl
            count, client = rng.choice((1, 1, 2, 3, 5)), rng.choice(clients)
            node = rng.choice(self.names)
            faults.append(Fault("ambush", count, client, node, seconds, how))
        return faults

    def _pauses(self, clients: list[str]) -> list[Fault]:
        rng = self.rng
        faults = []
        for _ in range(rng.choice((1, 2, 4))):
            seconds = self._while()
            if rng.random() < 0.1:
                seconds += 1.1 + 1.02 * self.max_ttl
            if rng.random() < 0.3:
                fault = Fault("pause", self._instant(), rng.choice(clients))
            else:
                fault = Fault("pause trap", self._turn(), rng.choice(clients))
            faults.append(replace(fault, seconds=seconds))
        return faults

    def _deaths(self, clients: list[str]) -> list[Fault]:
        rng = self.rng
        how = rng.choice(("killed", "killed", "killed freed", "powered off"))
        fault = Fault("death", self._instant(), rng.choice(clients), how=how)
        if rng.random() < 0.7:
            fault = replace(fault, kind="death trap", at=self._turn())
        return [fault]

    def _interrupts(self, clients: list[str]) -> list[Fault]:
        return [
            Fault("interrupt trap", self._turn(), self.rng.choice(clients))
            for _ in range(self.rng.choice((1, 3)))
        ]

    def _steps(self, clients: list[str]) -> list[Fault]:
        rng = self.rng
        faults = []
        for _ in range(rng.choice((1, 1, 3))):
            far = rng.choice((self.ttl / 3, self.max_ttl * 2, 3600.0))
            seconds = rng.uniform(-far, far)
            on = rng.choice(clients if rng.random() < 0.4 else self.names)
            faults.append(Fault("step", self._instant(), on, seconds=seconds))
        return faults

    def _forgotten_scripts(self, __: list[str]) -> list[Fault]:
        return [
            Fault("forget scripts", self._instant(), self.rng.choice(self.names))
            for _ in range(2)
        ]


_MIXED = ("run", "manual", "manual", "drop", "look", "check")
_SCRIPTS = (
    *("acquire", "extend", "restore", "raise_fence", "release"),
    *("counters", "sync"),
)
_AMBUSHES = ("break", "break", "delay", "pause", "death")
_RESET = ("reset",)
_MEMORIES = ("lose", "keep", "rollback")
