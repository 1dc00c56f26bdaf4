"""Make a plan from a seed: nodes, clients, operations, the network and the faults.

Each history has a random mix of faults. Many have only a few kinds, at most of their
strengths: faults of all kinds at once would hide the effect of each one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from celery_redlock.scripts.keys import key_of, keys_of
from celery_redlock.wire.quorum import quorum_of
from tests.simulation.network import Conditions
from tests.simulation.plan import (
    ClientPlan,
    Fault,
    NodePlan,
    Operation,
    Plan,
    Settings,
)

KEYS = ("a", "k1065")  # they share a stripe
APART = ("a", "b")  # they do not
LARGEST_DRIFT = 0.00499  # the core assumes less than 1 % between two clocks
_NODE_COUNTS = (1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5, 6, 7)


def plan_of(seed: int, style: str = "") -> Plan:
    """Return the plan that belongs to a seed.

    Args:
        seed: Any number.
        style: The behaviour of its clients, a key of ``_STYLES``; random by default.
            `PERMITS` is any of them, with clients that take permits.
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
    "members": 15,  # servers are replaced, and operators run commands
}
PERMITS = "permits"
_CONTENDED = ("expiry", "contention", "simultaneous")
_MIXED = ("run", "manual", "manual", "drop", "inspect", "check")


class _Planner:
    def __init__(self, seed: int, style: str) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)  # noqa: S311  (a seed is the point)
        (any_style,) = rng.choices(list(_STYLES), list(_STYLES.values()))
        self.is_limited = style == PERMITS
        self.style = any_style if self.is_limited else style or any_style
        self.is_calm = self.style == "calm"
        self.ttl = rng.choice((0.3, 0.3, 0.5, 1.0, 2.0))
        if self.style == "expiry":
            self.ttl = rng.choice((0.5, 2.0))
        self.max_ttl = self.ttl * rng.choice((1, 1, 1, 2))
        self.node_timeout = rng.choice((0.02, 0.05, 0.05))
        self.connect_timeout = rng.choice((0.1, 0.3))
        self.names = [f"n{i}" for i in range(rng.choice(_NODE_COUNTS))]
        self.spare: list[str] = []
        self.later_settings: list[Settings] = []
        if self.style == "simultaneous":
            self.names = self.names[: rng.choice((3, 3, 3, 4, 5))]
        if self.style == "members":
            self.ttl = 0.3
            self.max_ttl = rng.choice((0.3, 0.3, 0.6))
            self.names = self.names[: rng.choice((3, 3, 4, 5))]
        share = rng.random()
        pair = KEYS if share < 0.15 else APART if share < 0.3 else ()
        # Clients want one of them, or both together.
        self.keys = (*pair, key_of(pair)) if pair else KEYS[:1]
        self.drift = LARGEST_DRIFT * rng.choice((0.0, 1.0, 1.0))
        self.duration = self.ttl * rng.choice((1.0, 2.0, 3.0))
        if self.style == "members":
            self.duration = rng.choice((3.0, 5.0, 8.0))
            self._plan_replacements()

    def _plan_replacements(self) -> None:
        """Plan servers that can replace members, and settings that name others."""
        rng = self.rng
        new = [f"m{i}" for i in range(9)]
        present = self.names
        for _ in range(rng.choice((0, 1, 1, 2))):
            kept = rng.sample(present, rng.randint(0, len(present)))
            added = [name for name in new if name not in kept]
            names = kept + rng.sample(added, rng.randint(not kept, 2))
            if rng.random() < 0.2:
                names = present
            max_ttl = rng.choice((self.max_ttl, self.max_ttl, 0.3, 0.6))
            self.later_settings.append(Settings(tuple(names), max_ttl))
            present = rng.choice((names, self.names))
        named = {name for each in self.later_settings for name in each.names}
        twins: list[str] = []
        for name in rng.sample(self.names, len(self.names)):
            # If a majority of the names leads elsewhere, no two views share a server.
            most = all(
                sum(other in (name, *twins) for other in names) < quorum_of(len(names))
                for names in (self.names, *(each.names for each in self.later_settings))
            )
            if most and rng.random() < 0.7:
                twins.append(name)
        self.spare = [
            *(f"{name}b" for name in twins),
            *(name for name in new if name in named),
        ]

    def plan(self) -> Plan:
        plan = self._with_evictions(self._with_returns(self._plan()))
        return self._with_limits(plan)

    def _plan(self) -> Plan:
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
            for name in (*self.names, *self.spare)
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
            members=tuple(self.names) if self.spare else (),
            later_settings=tuple(self.later_settings),
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
        most = {"contention": 4, "calm": 2, "members": 20}.get(self.style, 3)
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
        key = rng.choice(self.keys) if len(self.keys) > 1 else self.keys[0]
        first = Operation("inspect", key, 0.0, 0.0)
        then = Operation("run", key, 0.2 + 0.005 * rng.random(), 0.0)
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
        if self.style == "members":
            operation = replace(
                operation,
                after=rng.choice((0.05, 1.0, 2.0)) * ttl * rng.random(),
                wait=rng.choice((0.0, 0.3, 1.0, 5.0)) * ttl,
                settings=rng.randint(0, len(self.later_settings)),
            )
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

    def _with_returns(self, plan: Plan) -> Plan:
        """Let a node of some plans get an old memory back, beside the other faults."""
        rng = Random(f"{self.seed} returns")  # noqa: S311  (a seed is the point)
        if plan.is_calm or rng.random() > _WITH_RETURNS:
            return plan
        end = max((fault.at for fault in plan.faults), default=self.duration)
        end = min(end, 2 * self.duration)
        faults = list(plan.faults)
        for _ in range(rng.choice((1, 1, 2))):
            node, at = rng.choice(plan.nodes).name, end * rng.random()
            taken_at = at - self.ttl * rng.choice((0.3, 1.0)) * rng.random()
            faults.append(Fault("snapshot", max(0.0, taken_at), node))
            faults.append(Fault("come back", at, node))
        return plan.but(faults=tuple(sorted(faults, key=lambda fault: fault.at)))

    def _with_evictions(self, plan: Plan) -> Plan:
        """Let a node of some plans evict its locks, beside the other faults."""
        rng = Random(f"{self.seed} evictions")  # noqa: S311  (a seed is the point)
        if plan.is_calm or rng.random() > _WITH_EVICTIONS:
            return plan
        end = max((fault.at for fault in plan.faults), default=self.duration)
        end = min(end, 2 * self.duration)
        evictions = [
            Fault("evict", end * rng.random(), rng.choice(plan.nodes).name)
            for _ in range(rng.choice((1, 1, 2)))
        ]
        faults = sorted([*plan.faults, *evictions], key=lambda fault: fault.at)
        return plan.but(faults=tuple(faults))

    def _with_limits(self, plan: Plan) -> Plan:
        """Let clients of some plans take permits, beside plain locks."""
        rng = Random(f"{self.seed} permits")  # noqa: S311  (a seed is the point)
        if rng.random() > _WITH_PERMITS and not self.is_limited:
            return plan
        limits = _LimitPlanner(rng, self.ttl, self.max_ttl)
        return plan.but(
            clients=tuple(
                replace(client, tasks=limits.tasks(client.tasks))
                for client in plan.clients
            )
        )

    def _faults(self, clients: tuple[ClientPlan, ...]) -> list[Fault]:
        tasks = [task for client in clients for task in client.tasks]
        faults = _FaultPlanner(
            rng=self.rng,
            nodes=[*self.names, *self.spare],
            clients=[client.name for client in clients],
            span=0.01
            + max(sum(o.after + o.hold + o.wait / 2 for o in t) for t in tasks),
            ttl=self.ttl,
            max_ttl=self.max_ttl,
            node_timeout=self.node_timeout,
        )
        if self.style == "members":
            return faults.of_members(
                self.spare, [each.names for each in self.later_settings]
            )
        if self.style == "simultaneous" and self.rng.random() < 0.9:
            return faults.lost_raises()
        return faults.of_all_kinds()


_WITH_RETURNS = _WITH_EVICTIONS = 0.15  # a share of the plans that have faults

# -- Permits -------------------------------------------------------------------

_WITH_PERMITS = 0.08  # a share of the plans: they take several times as long
_MOST = (1, 2, 2, 2, 3, 3, 3, 4, 5, 7, 20)


class _LimitPlanner:
    """Plans the limits of the keys of one history.

    Args:
        rng: Random numbers.
        ttl, max_ttl: The settings of the clients.
    """

    def __init__(self, rng: Random, ttl: float, max_ttl: float) -> None:
        self._rng = rng
        self._most = rng.choice(_MOST)
        # Some clients may have the limit of the next deploy already.
        self._next = rng.choice((self._most, self._most, rng.choice(_MOST)))
        self._plain = rng.choice((0.0, 0.0, 0.2))
        self._rate: tuple[int, float] | None = None
        self._limits_holders = True
        if rng.random() < 0.45:
            period = rng.choice((0.3 * ttl, ttl, max_ttl, 3 * max_ttl, 20 * max_ttl))
            self._rate = (rng.choice((1, 2, 2, 3, 5, 20)), round(period, 3))
            self._limits_holders = rng.random() < 0.5
        self._copies = rng.choice((0, 1, 1, 2)) if self._most < 20 else 3

    def tasks(
        self, tasks: tuple[tuple[Operation, ...], ...]
    ) -> tuple[tuple[Operation, ...], ...]:
        """Return these tasks, and some more of their kind, with limits."""
        tasks += tasks[:1] * self._copies
        return tuple(tuple(map(self._limited, task)) for task in tasks)

    def _limited(self, operation: Operation) -> Operation:
        rng = self._rng
        operation = replace(operation, after=operation.after * rng.uniform(0.8, 1.2))
        if rng.random() < self._plain:
            return operation
        most = rng.choice((self._most, self._next))
        keys = keys_of(operation.key)
        if keys[1:]:
            # One tenant's own key, and one that all share.
            shares = (most, *(1 for _ in keys[1:]))
            return replace(operation, shares=shares, rate=self._rate)
        limit = most if self._limits_holders else None
        return replace(operation, limit=limit, rate=self._rate)


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

    def of_members(
        self, spare: list[str], later_names: list[tuple[str, ...]]
    ) -> list[Fault]:
        """Replace servers and let operators run commands, besides other faults."""
        rng = self.rng
        planners = [
            (0.6, self._crashes),
            (0.4, self._flushes),
            (0.4, self._forgotten_memberships),
            (0.15, self._hangs),
            (0.3, self._network_faults),
            (0.2, self._faults_on_calls),
            (0.4, self._pauses),
            (0.1, self._deaths),
            (0.05, self._clock_steps),
            (0.3, self._inits),
        ]
        twins = [name for name in spare if name.endswith("b")]
        faults: list[Fault] = []
        for chance, planner in planners:
            if rng.random() < chance:
                faults += planner()
        if twins and rng.random() < 0.7:
            faults += self._leads(twins)
        if twins and rng.random() < 0.3:
            faults += self._replacement_unseen(rng.choice(twins))
        if later_names:
            faults += self._reconfigurations(len(later_names))
        return sorted(faults, key=lambda fault: fault.at)

    def _leads(self, twins: list[str]) -> list[Fault]:
        """Let names lead some clients, or all, to other servers, and perhaps back."""
        rng = self.rng
        faults = []
        for _ in range(rng.choice((1, 2, 4))):
            twin, at = rng.choice(twins), self._instant()
            name = twin.removesuffix("b")
            client = rng.choice(("", self._client(), self._client(), "o0"))
            to = rng.choice((twin, twin, name))
            faults.append(Fault("lead", at, name, client, how=to))
            for each in self.clients if rng.random() < 0.7 else ():
                if client in ("", each):
                    old = name if to == twin else twin
                    faults.append(Fault("reset", at, each, old))
        return faults

    def _replacement_unseen(self, twin: str) -> list[Fault]:
        """Replace a server for one client, who cannot tell all other nodes at once."""
        rng, client, at = self.rng, self._client(), self._instant()
        name = twin.removesuffix("b")
        cut = 1.0 + self.max_ttl * rng.uniform(0.5, 2.0)
        return [
            Fault("lead", at, name, client, how=twin),
            Fault("reset", at, client, name),
            Fault("cut", at, client, self._node(), cut),
        ]

    def _forgotten_memberships(self) -> list[Fault]:
        return [
            Fault("forget meta", self._instant(), self._node())
            for _ in range(self.rng.choice((1, 1, 2, 4)))
        ]

    def _inits(self) -> list[Fault]:
        rng = self.rng
        at = rng.choice((0.0, self._instant()))
        return [
            Fault("command", at + 0.01 * rng.random() * i, f"i{i}", how=how)
            for i, how in enumerate(("init 0",) * rng.choice((1, 1, 2)))
        ]

    def _reconfigurations(self, settings: int) -> list[Fault]:
        """Run a reconfiguration, often several times; each may be interrupted."""
        rng = self.rng
        faults = []
        at = self._instant()
        old, new = 0, rng.randint(1, settings)
        for number in range(rng.choice((1, 2, 3, 5))):
            how = f"reconfigure {old} {new}"
            if number and rng.random() < 0.3:
                how += " abort"
            if rng.random() < 0.5:
                how += f" dies {int(10 ** rng.uniform(1.0, 3.3))}"
            faults.append(Fault("command", at, f"o{number}", how=how))
            at += rng.choice((0.0, 0.1, 1.0, 3.0)) * rng.random()
            if rng.random() < 0.3:
                others = [n for n in range(settings + 1) if n != new]
                old, new = new, rng.choice(others)
            elif rng.random() < 0.2 and settings > 1:
                new = rng.choice([n for n in range(1, settings + 1) if n != old])
        return faults

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
