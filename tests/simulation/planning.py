"""Make a plan from a seed: who there is, what they do, in which weather.

The faults are those of ``mishaps``.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from celery_redlock.core.ballot import quorum_of
from tests.simulation.connection import Weather
from tests.simulation.mishaps import Mishaps
from tests.simulation.plan import ClientPlan, Fault, NodePlan, Operation, Plan

__all__ = ["KEYS", "plan_of"]

KEYS = ("a", "k1065")  # they share a stripe
LARGEST_DRIFT = 0.00499  # of two clocks together less than 1 %, as is assumed
_COUNTS = (1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 5, 5, 5, 6, 7)


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
_MIXED = ("run", "manual", "manual", "drop", "look", "check")


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
            faults=()
            if self.is_calm
            else tuple(self._faults([each.name for each in clients])),
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
            return replace(operation, wait=rng.choice((30, 30, rng.random())) * ttl)
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

    def _faults(self, clients: list[str]) -> list[Fault]:
        mishaps = Mishaps(
            rng=self.rng,
            nodes=self.names,
            clients=clients,
            span=self.span,
            ttl=self.ttl,
            max_ttl=self.max_ttl,
            node_timeout=self.node_timeout,
        )
        if self.style == "duel" and self.rng.random() < 0.9:
            return mishaps.near_misses()
        return mishaps.of_all_kinds()
