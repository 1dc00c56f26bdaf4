"""Make a plan from a seed: nodes, clients, operations, the network and the faults.

Each history has a random mix of faults. Many have only a few kinds, at most of their
strengths: faults of all kinds at once would hide the effect of each one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from celery_redlock.core.quorum import quorum_of
from tests.simulation.network import Conditions
from tests.simulation.plan import ClientPlan, Fault, NodePlan, Operation, Plan

__all__ = ["KEYS", "plan_of"]

KEYS = ("a", "k1065")  # they share a stripe
LARGEST_DRIFT = 0.00499  # the core assumes less than 1 % between two clocks
_NODE_COUNTS = (1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5, 6, 7)


def plan_of(seed: int, style: str = "") -> Plan:
    """Return the plan that belongs to a seed.

    Args:
        seed: Any number.
        style: The behaviour of its clients, a key of ``_STYLES``; random by default.
    """
    return _Planner(seed, style).plan()


# The behaviour of the clients of a history, with its weight.
_STYLES = {
    "calm": 4,  # nothing fails
    "mixed": 26,  # operations of all kinds
    "bodies": 20,  # bodies under the lock, as applications have them
    "expiry": 14,  # leases that expire while other clients wait for the lock
    "contention": 14,  # many short attempts over an unsteady network
    "simultaneous": 22,  # attempts at the same moment, while connections break
}
_CONTENDED = ("expiry", "contention", "simultaneous")
_MIXED = ("run", "manual", "manual", "drop", "inspect", "check")


class _Planner:
    def __init__(self, seed: int, style: str) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)  # noqa: S311  (a seed is the point)
        (any_style,) = rng.choices(list(_STYLES), list(_STYLES.values()))
        self.style = style or any_style
        self.is_calm = self.style == "calm"
        self.ttl = rng.choice((0.3, 0.3, 0.5, 1.0, 2.0))
        if self.style == "expiry":
            self.ttl = rng.choice((0.5, 2.0))
        self.max_ttl = self.ttl * rng.choice((1, 1, 1, 2))
        self.node_timeout = rng.choice((0.02, 0.05, 0.05))
        self.connect_timeout = rng.choice((0.1, 0.3))
        self.names = [f"n{i}" for i in range(rng.choice(_NODE_COUNTS))]
        if self.style == "simultaneous":
            self.names = self.names[: rng.choice((3, 3, 3, 4, 5))]
        self.keys = KEYS if rng.random() < 0.15 else KEYS[:1]
        self.drift = LARGEST_DRIFT * rng.choice((0.0, 1.0, 1.0))
        self.duration = self.ttl * rng.choice((1.0, 2.0, 3.0))

    def plan(self) -> Plan:
        rng = self.rng
        node_skew = rng.choice((0.0, 0.01, 0.01, 0.1 * self.max_ttl, 3.0))
        if self.style == "simultaneous":
            node_skew = 0.01  # so that the first counters differ
        fast = self.style == "expiry" and rng.random() < 0.5
        nodes = tuple(
            NodePlan(
                name,
                1.0 + self.drift if fast else self._rate(),
                rng.uniform(-node_skew, node_skew),
            )
            for name in self.names
        )
        clients = self._clients()
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
            final_quorums=tuple(
                tuple(sorted(rng.sample(self.names, quorum)))
                for _ in range(1 if quorum == len(self.names) else 2)
            ),
            is_calm=self.is_calm,
        )

    def _rate(self) -> float:
        return 1.0 + self.rng.choice((-1, 1)) * self.drift * self.rng.choice((1, 1, 0))

    def _clients(self) -> tuple[ClientPlan, ...]:
        rng = self.rng
        count = rng.choice((1, 2, 2, 2, 3, 3, 4))
        skew = rng.choice((0.01, 0.01, self.max_ttl, 3600.0))
        if self.style in _CONTENDED:
            count = max(2, min(count, 3))
            skew = rng.choice((skew, skew, 3600.0))  # so that hints do not count
        if self.style == "simultaneous":
            skew = 3600.0
        conditions = self._conditions()
        return tuple(
            ClientPlan(
                name=f"c{i}",
                rate=self._rate(),
                skew=rng.uniform(-skew, skew),
                tasks=tuple(
                    self._operations() for _ in range(2 if rng.random() < 0.15 else 1)
                ),
                conditions=conditions,
            )
            for i in range(count)
        )

    def _conditions(self) -> Conditions:
        rng, timeout = self.rng, self.node_timeout
        longest = rng.choice((0.001, 0.001, 0.005, timeout / 3))
        if self.is_calm:
            return Conditions(0.0002, longest)
        if self.style in ("contention", "simultaneous"):
            # Some messages take long, but a client still waits for them.
            spikes, spike = rng.choice((0.1, 0.3)), rng.choice((0.5, 0.9)) * timeout
            return Conditions(0.0002, rng.choice((0.001, 0.005)), spikes, spike)
        return Conditions(
            0.0002,
            longest,
            rng.choice((0.0, 0.0, 0.02, 0.1)),
            rng.choice((1.0, 4.0)) * timeout,
            rng.choice((0.0, 0.0, 0.0, 0.02)),
        )

    def _operations(self) -> tuple[Operation, ...]:
        rng = self.rng
        if self.style == "simultaneous":
            return self._simultaneous_operations()
        most = {"contention": 4, "calm": 2}.get(self.style, 3)
        eager = rng.random() < 0.5
        operations: list[Operation] = []
        spent = 0.0
        while spent < self.duration and len(operations) < most:
            operation = self._operation(eager=eager)
            operations.append(operation)
            spent += operation.after + operation.hold
        return tuple(operations)

    def _simultaneous_operations(self) -> tuple[Operation, ...]:
        """Connect first, then try for the lock at the same moment as other clients."""
        rng = self.rng
        first = Operation("inspect", self.keys[0], 0.0, 0.0)
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
            stops_on_loss=rng.random() < 0.7,
            renews=rng.random() < 0.85,
        )
        if self.style == "calm":
            return replace(operation, wait=rng.choice((30, 30, rng.random())) * ttl)
        if self.style == "mixed" or rng.random() < 0.1:
            return replace(operation, kind=rng.choice(_MIXED))
        if self.style == "contention":
            after, hold = 0.01 * ttl * rng.random(), 0.02 * ttl * rng.random()
            wait = rng.choice((0.0, 0.3)) * ttl
            return replace(operation, after=after, hold=hold, wait=wait, keep=0.0)
        if self.style == "expiry":
            if rng.random() < 0.4:
                return replace(operation, wait=rng.choice((1.0, 1.6)) * ttl, keep=0.0)
            operation = replace(operation, stops_on_loss=False, keep=0.0)
            hold, renews = ttl * rng.uniform(0.8, 1.5), rng.random() < 0.2
            return replace(operation, hold=hold, renews=renews)
        return operation

    def _ttl(self) -> float | None:
        if self.rng.random() < 0.8:
            return None
        return self.rng.choice((self.max_ttl, max(self.ttl / 2, 0.2)))

    def _faults(self, clients: tuple[ClientPlan, ...]) -> list[Fault]:
        tasks = [task for client in clients for task in client.tasks]
        faults = _FaultPlanner(
            rng=self.rng,
            nodes=self.names,
            clients=[client.name for client in clients],
            span=0.01
            + max(sum(o.after + o.hold + o.wait / 2 for o in t) for t in tasks),
            ttl=self.ttl,
            max_ttl=self.max_ttl,
            node_timeout=self.node_timeout,
        )
        if self.style == "simultaneous" and self.rng.random() < 0.9:
            return faults.lost_raises()
        return faults.of_all_kinds()


# -- Faults --------------------------------------------------------------------

_SCRIPTS = (
    *("acquire", "extend", "restore", "raise_fence", "release"),
    *("counters", "sync", "join_wait_queue", "leave_wait_queue"),
)
_ON_CALL = ("break", "break", "delay", "pause", "death")
_RESET = ("reset",)
_MEMORIES = ("lose", "keep", "rollback")


@dataclass(frozen=True, slots=True)
class _FaultPlanner:
    """Plans the faults of one history.

    Attributes:
        rng: Random numbers.
        nodes, clients: Their names.
        span: Seconds in which a fault can happen.
        ttl, max_ttl, node_timeout: The settings of the clients.
    """

    rng: Random
    nodes: list[str]
    clients: list[str]
    span: float
    ttl: float
    max_ttl: float
    node_timeout: float

    def of_all_kinds(self) -> list[Fault]:
        """Return some faults, in the order in which they happen."""
        planners = (
            (0.35, self._crashes),
            (0.20, self._flushes),
            (0.25, self._hangs),
            (0.40, self._network_faults),
            (0.25, self._faults_on_calls),
            (0.45, self._pauses),
            (0.15, self._deaths),
            (0.10, self._interrupts),
            (0.12, self._clock_steps),
            (0.05, self._forgotten_scripts),
        )
        faults: list[Fault] = []
        for chance, planner in planners:
            if self.rng.random() < chance:
                faults += planner()
        return sorted(faults, key=lambda fault: fault.at)

    def lost_raises(self) -> list[Fault]:
        """Lose the raise of one client on a node that gets the other's vote late."""
        rng = self.rng
        one, other = rng.sample(self.clients, 2)
        node, count = self._node(), rng.choice((1, 1, 2))
        faults = [
            Fault("on call", count, one, node, 0.0, "raise_fence break"),
            Fault("on call", count, other, node, self._delay(), "acquire delay"),
        ]
        for _ in range(rng.randint(0, 4)):
            how = rng.choice(
                ("acquire delay", "raise_fence break", "raise_fence delay")
            )
            count, client = rng.choice((1, 2, 3)), self._client()
            node = self._node()
            faults.append(Fault("on call", count, client, node, self._delay(), how))
        return faults

    def _node(self) -> str:
        return self.rng.choice(self.nodes)

    def _client(self) -> str:
        return self.rng.choice(self.clients)

    def _instant(self) -> float:
        return self.rng.random() * self.span

    def _operation(self) -> int:
        """Return the number of an operation of a client, early ones more often."""
        return int(10 ** self.rng.uniform(0.7, 2.9))

    def _seconds(self) -> float:
        scale = (0.02, 0.3, 1.0, 1.0, 2.0)
        return self.ttl * self.rng.choice(scale) * self.rng.uniform(0.5, 1.5)

    def _seconds_or_a_quarantine(self) -> float:
        seconds = self._seconds()
        return seconds + (1.1 + 1.02 * self.max_ttl) * (self.rng.random() < 0.1)

    def _delay(self) -> float:
        return self.node_timeout * self.rng.uniform(0.2, 1.0)

    def _crashes(self) -> list[Fault]:
        rng = self.rng
        faults: list[Fault] = []
        memories = rng.choice((("lose",), ("keep",), ("rollback",), _MEMORIES))
        for _ in range(rng.choice((1, 1, 2, 3))):
            node, at = self._node(), self._instant()
            memory = rng.choice(memories)
            if memory == "rollback":
                faults.append(Fault("snapshot", at * rng.random(), node))
            how = f"{memory} {rng.choice(('reset', 'reset', 'silent'))}"
            seconds = rng.choice((0.01, self._seconds()))
            if memory != "lose" and rng.random() < 0.3:
                how += " loading"
            faults.append(Fault("crash", at, node, seconds=seconds, how=how))
        return faults

    def _flushes(self) -> list[Fault]:
        return [
            Fault("flush", self._instant(), self._node())
            for _ in range(self.rng.choice((1, 1, 2)))
        ]

    def _hangs(self) -> list[Fault]:
        return [
            Fault("hang", self._instant(), self._node(), seconds=self._seconds())
            for _ in range(self.rng.choice((1, 2, 4)))
        ]

    def _network_faults(self) -> list[Fault]:
        rng = self.rng
        kinds = rng.choice(
            (("cut",), ("slow",), _RESET, _RESET, (*_RESET, "cut", "slow"))
        )
        faults = []
        for _ in range(rng.choice((1, 3, 6))):
            kind, at, seconds = rng.choice(kinds), self._instant(), self._seconds()
            several = rng.sample(self.nodes, rng.randint(1, len(self.nodes)))
            nodes = several if rng.random() < 0.5 else several[:1]
            client = self._client()
            if kind == "reset" and rng.random() < 0.7:
                kind, at = "reset at operation", self._operation()
                if rng.random() < 0.5:
                    at = rng.randint(10, 150)
            faults += [Fault(kind, at, client, node, seconds) for node in nodes]
        return faults

    def _faults_on_calls(self) -> list[Fault]:
        rng = self.rng
        scripts = rng.choice((_SCRIPTS, _SCRIPTS, ("acquire",), ("raise_fence",)))
        actions = rng.choice((("break",), ("delay", "pause"), _ON_CALL))
        faults = []
        for _ in range(rng.choice((1, 3, 6))):
            how = f"{rng.choice(scripts)} {rng.choice(actions)}"
            seconds = self._seconds_or_a_quarantine()
            count, client = rng.choice((1, 1, 2, 3, 5)), self._client()
            node = self._node()
            faults.append(Fault("on call", count, client, node, seconds, how))
        return faults

    def _pauses(self) -> list[Fault]:
        rng = self.rng
        faults = []
        for _ in range(rng.choice((1, 2, 4))):
            seconds = self._seconds_or_a_quarantine()
            now = rng.random() < 0.3
            kind = "pause" if now else "pause at operation"
            at = self._instant() if now else self._operation()
            faults.append(Fault(kind, at, self._client(), seconds=seconds))
        return faults

    def _deaths(self) -> list[Fault]:
        rng = self.rng
        how = rng.choice(("killed", "killed", "killed released", "powered off"))
        fault = Fault("death", self._instant(), self._client(), how=how)
        if rng.random() < 0.7:
            fault = replace(fault, kind="death at operation", at=self._operation())
        return [fault]

    def _interrupts(self) -> list[Fault]:
        return [
            Fault("interrupt at operation", self._operation(), self._client())
            for _ in range(self.rng.choice((1, 3)))
        ]

    def _clock_steps(self) -> list[Fault]:
        rng = self.rng
        faults = []
        for _ in range(rng.choice((1, 1, 3))):
            most = rng.choice((self.ttl / 3, self.max_ttl * 2, 3600.0))
            seconds = rng.uniform(-most, most)
            on = rng.choice(self.clients if rng.random() < 0.4 else self.nodes)
            faults.append(Fault("clock step", self._instant(), on, seconds=seconds))
        return faults

    def _forgotten_scripts(self) -> list[Fault]:
        return [
            Fault("forget scripts", self._instant(), self._node()) for _ in range(2)
        ]
