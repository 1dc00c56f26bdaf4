"""Let a plan happen, and look at what became of it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from celery_redlock.errors import LockUnavailable
from tests.simulation.clients import Client, new_redlock
from tests.simulation.connection import Weather
from tests.simulation.faults import Faults
from tests.simulation.handover import Handovers
from tests.simulation.network import Network
from tests.simulation.server import Server, ServerClock
from tests.simulation.witness import Finding, Witness
from tests.simulation.world import Process, Thread, World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from tests.simulation.plan import Plan

__all__ = ["Outcome", "play"]

_LONGEST = 600.0  # seconds that clients may take to come to an end
_STILL = Weather(0.0002, 0.001)
_PATIENCE = 3.0  # seconds: reconnecting, and pauses between tries
_ON_THE_WAY = 2.0  # seconds after which all messages have arrived
_MOMENT = 0.01  # seconds
_SETTLING = 0.5  # seconds in which calm nodes are rid of released locks


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan.

    Attributes:
        findings: What must not happen and did.
        coverage: How often which fault, vote and verdict occurred.
        trace: The history, line by line, if it was asked for.
    """

    plan: Plan
    findings: list[Finding]
    coverage: Counter[str]
    trace: list[tuple[float, str, str]]

    def report(self) -> str:
        """Return the plan, what happened and what was found, to be read."""
        width = max((len(who) for _, who, _ in self.trace), default=0)
        lines = [f"{at:9.4f}  {who:<{width}}  {what}" for at, who, what in self.trace]
        found = [f"FOUND {finding}" for finding in self.findings]
        return "\n".join([str(self.plan), "", *lines, "", *found])


def play(plan: Plan, *, traced: bool = False, blind_to: Iterable[str] = ()) -> Outcome:
    """Let one history happen. ``simulated_seams`` must be in place.

    Args:
        plan: What is to happen.
        traced: Write down each step.
        blind_to: Kinds of findings that do not count.
    """
    return _History(plan, traced=traced, blind_to=frozenset(blind_to)).play()


class _History:
    def __init__(self, plan: Plan, *, traced: bool, blind_to: frozenset[str]) -> None:
        self.plan_ = plan
        self.world = World(traced=traced)
        self.network = Network(self._rng)
        self.witness = Witness(
            self.world,
            self.network,
            len(plan.nodes),
            clocks_sane=plan.clocks_sane,
            blind_to=blind_to,
        )
        if plan.is_calm:
            self.witness.handovers = Handovers(self.witness)
        self.world.witness = self.witness
        self.servers = {
            about.name: Server(
                self.world,
                self.witness,
                about.name,
                ServerClock(self.world, rate=about.rate, skew=about.skew),
            )
            for about in plan.nodes
        }
        for server in self.servers.values():
            self.network.add(server)
        self.clients = {
            about.name: Client(self.world, self.witness, plan, about)
            for about in plan.clients
        }
        for client in self.clients.values():
            client.process.rng = self._rng(f"dice {client.name}")
        self.judges: list[Process] = []
        self.healed_at = 0.0

    def _rng(self, name: str) -> Random:
        return Random(f"{self.plan_.seed} {name}")  # noqa: S311  (a seed is the point)

    def play(self) -> Outcome:
        plan, world, witness = self.plan_, self.world, self.witness
        try:
            self._act()
        finally:
            for process in self._processes():
                if not process.dead:
                    process.die()
            world.run(world.now)
            for process in self._processes():
                for thread in process.threads:
                    thread.end()
        for error in world.crashes:
            text = "".join(traceback.format_exception(error)[-3:]).strip()
            witness.findings.append(Finding("error", text))
        return Outcome(plan, witness.findings, witness.coverage, world.trace or [])

    def _processes(self) -> list[Process]:
        return [*(client.process for client in self.clients.values()), *self.judges]

    @property
    def _failed(self) -> bool:
        return bool(self.witness.findings or self.world.crashes)

    def _act(self) -> None:
        """Let the clients do what they want; then look, then judge."""
        for act in (self._begin, self._let_clients_end, self._settle, self._outlive):
            act()
            if self._failed:
                return
        self._judge()

    def _begin(self) -> None:
        plan = self.plan_
        guard = next(iter(self.clients.values())).redlock.guard
        keys = [guard.fence_key, guard.meta_key, guard.quarantine_key]
        if plan.initialized:
            for server in self.servers.values():
                server.initialize(keys, guard.config)
        faults = Faults(
            self.world, self.witness, self.servers, self.clients, self._free
        )
        self.healed_at = faults.plan(plan.faults)
        for client in self.clients.values():
            client.start()

    def _let_clients_end(self) -> None:
        while not self._failed and not self._all_done():
            if self.world.now >= _LONGEST:
                self.witness.find("stuck", f"a client goes on after {_LONGEST:g} s")
            self.world.run(_LONGEST)

    def _settle(self) -> None:
        """Let faults pass; see that all were told, and that calm leaves no trace."""
        if self.plan_.is_calm:
            self._pass_time(self.plan_.ttl / 2 + _SETTLING)
            self.witness.check_nothing_left(
                list(self.servers.values()),
                "after all were released, and nothing failed",
            )
        pauses = [client.process.paused_until for client in self.clients.values()]
        self._pass_time(max(self.healed_at, *pauses) - self.world.now)
        self._pass_time(_MOMENT)
        if not self._failed:
            self.witness.check_all_told()

    def _outlive(self) -> None:
        """End all clients and see that their locks end after them."""
        plan, witness = self.plan_, self.witness
        for client in self.clients.values():
            client.process.die()
        longest = plan.max_ttl * 1.01 + 1.01 * witness.held_up
        self._pass_time(self._delivered_at() - self.world.now)
        self._pass_time(longest)
        witness.check_nothing_left(
            list(self.servers.values()),
            f"{longest:g} s after the last client was gone",
        )

    def _pass_time(self, seconds: float) -> None:
        end = self.world.now + max(0.0, seconds)
        while not self._failed and self.world.now < end:
            self.world.run(end)

    def _all_done(self) -> bool:
        return all(
            client.process.dead or all(task.is_done for task in client.tasks)
            for client in self.clients.values()
        )

    def _delivered_at(self) -> float:
        """Return by when all that is on its way has arrived somewhere."""
        blocked = [server.hung_until for server in self.servers.values()]
        for client in self.clients.values():
            paths = self.network.paths_of(client.name)
            blocked += [path.cut_until for path in paths]
        return max(self.world.now, *blocked) + _ON_THE_WAY

    # -- others than the clients ---------------------------------------------------

    def _new_judge(self, name: str, skew: float) -> Process:
        process = Process(self.world, name, rate=1.0, skew=skew)
        process.rng = self._rng(f"dice {name}")
        self.network.attach(process, _STILL)
        self.judges.append(process)
        return process

    def _free(self, client: Client) -> None:
        """Release what a dead client held, as its parent process does."""
        parent = self._new_judge(f"{client.name}'s parent", 0.0)
        redlock = new_redlock(parent, self.plan_)

        def free() -> None:
            for key, base in client.bases:
                redlock.release_base(key, base)
            self.witness.count("freed")

        Thread(target=free, process=parent).start()

    def _judge(self) -> None:
        """Take each lock from some majority; its fence must be the greatest."""
        plan, world, witness = self.plan_, self.world, self.witness
        # Hints that are far off leave only the counters.
        judge = self._new_judge("judge", -86400.0)
        redlock = new_redlock(judge, plan)
        done: list[bool] = []

        def take_all() -> None:
            try:
                if redlock.check().problems:
                    judge.clock.sleep(redlock.timing.quarantine * 1.01 + _PATIENCE)
                    redlock.check()
                for probe in plan.probes:
                    for path in self.network.paths_of(judge.name):
                        is_in = path.server.name in probe
                        path.cut_until = 0.0 if is_in else float("inf")
                    for key in plan.keys:
                        lease = redlock.acquire(key, wait=_PATIENCE)
                        redlock.release(lease)
                done.append(True)
            except LockUnavailable as error:
                witness.find("nobody can lock", str(error))
            finally:
                world.stopped = True

        Thread(target=take_all, process=judge).start()
        world.run(world.now + _LONGEST)
        if not done and not self._failed:
            witness.find("stuck", "the judge has not ended")
