"""Play one plan in the simulated world, and check the rules."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from celery_redlock.errors import LockUnavailable
from tests.simulation.clients import Client, new_redlock
from tests.simulation.faults import Faults
from tests.simulation.network import Conditions, Network
from tests.simulation.oracles import Finding, Oracle, WakeupOracle
from tests.simulation.server import Server, ServerClock
from tests.simulation.world import Process, Thread, World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from tests.simulation.plan import Plan

__all__ = ["Outcome", "play"]

_STEADY = Conditions(0.0002, 0.001)

# Seconds.
_LONGEST = 600.0  # for all clients to end
_FINAL_WAIT = 3.0  # for one lock at the end: reconnecting, and pauses between tries
_ON_THE_WAY = 2.0  # after which all messages have arrived
_MOMENT = 0.01
_CLEANING_UP = 0.5  # in which calm nodes are rid of released locks


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a history.

    Attributes:
        findings: The rules that were broken.
        coverage: How often each fault, vote and verdict occurred.
        trace: The history, line by line, if it was asked for.
    """

    plan: Plan
    findings: list[Finding]
    coverage: Counter[str]
    trace: list[tuple[float, str, str]]

    def report(self) -> str:
        """Return the plan, the history and the findings as text."""
        width = max((len(actor) for _, actor, _ in self.trace), default=0)
        lines = [
            f"{at:9.4f}  {actor:<{width}}  {text}" for at, actor, text in self.trace
        ]
        found = [f"FOUND {finding}" for finding in self.findings]
        return "\n".join([str(self.plan), "", *lines, "", *found])


def play(plan: Plan, *, traced: bool = False, ignored: Iterable[str] = ()) -> Outcome:
    """Play one history. Needs the block of ``simulated_core``.

    Args:
        plan: The plan.
        traced: Record each step.
        ignored: Kinds of findings that do not count.
    """
    return _History(plan, traced=traced, ignored=frozenset(ignored)).play()


class _History:
    def __init__(self, plan: Plan, *, traced: bool, ignored: frozenset[str]) -> None:
        self.plan = plan
        self.world = World(traced=traced)
        self.network = Network(self._rng)
        self.oracle = Oracle(
            self.world,
            self.network,
            len(plan.nodes),
            clocks_agree=plan.clocks_agree,
            ignored=ignored,
        )
        if plan.is_calm:
            self.oracle.wakeups = WakeupOracle(self.oracle)
        self.world.oracle = self.oracle
        self.servers: dict[str, Server] = {}
        for node in plan.nodes:
            clock = ServerClock(self.world, rate=node.rate, skew=node.skew)
            server = Server(self.world, self.oracle, node.name, clock)
            self.servers[node.name] = server
            self.network.add(server)
        self.clients = {
            part.name: Client(self.world, self.oracle, plan, part)
            for part in plan.clients
        }
        for client in self.clients.values():
            client.process.rng = self._rng(f"dice {client.name}")
        self.later_processes: list[Process] = []
        self.faults_end_at = 0.0

    def _rng(self, name: str) -> Random:
        return Random(f"{self.plan.seed} {name}")  # noqa: S311  (a seed is the point)

    def play(self) -> Outcome:
        try:
            self._play()
        finally:
            for process in self._processes():
                if not process.dead:
                    process.die()
            self.world.run(self.world.now)
            for process in self._processes():
                for thread in process.threads:
                    thread.end()
        findings = self.oracle.findings
        for error in self.world.crashes:
            text = "".join(traceback.format_exception(error)[-3:]).strip()
            findings.append(Finding("unexpected error", text))
        return Outcome(
            self.plan, findings, self.oracle.coverage, self.world.trace or []
        )

    def _processes(self) -> list[Process]:
        clients = self.clients.values()
        return [*(client.process for client in clients), *self.later_processes]

    @property
    def _failed(self) -> bool:
        return bool(self.oracle.findings or self.world.crashes)

    def _play(self) -> None:
        for act in (
            *(self._begin, self._await_clients, self._await_reports),
            *(self._await_ttls, self._take_each_lock),
        ):
            act()
            if self._failed:
                return

    def _begin(self) -> None:
        plan = self.plan
        guard = next(iter(self.clients.values())).redlock.guard
        if plan.initialized:
            for server in self.servers.values():
                server.initialize(guard.keys.meta, guard.config)
        faults = Faults(
            self.world, self.oracle, self.servers, self.clients, self._release_for
        )
        self.faults_end_at = faults.schedule(plan.faults)
        for client in self.clients.values():
            client.start()

    def _await_clients(self) -> None:
        while not self._failed and not self._all_done():
            if self.world.now >= _LONGEST:
                text = f"a client has not ended after {_LONGEST:g} s"
                self.oracle.find("stuck", text)
            self.world.run(_LONGEST)

    def _all_done(self) -> bool:
        return all(
            client.process.dead or all(task.is_done for task in client.tasks)
            for client in self.clients.values()
        )

    def _await_reports(self) -> None:
        """Wait for the end of faults; then every loss must have been reported."""
        if self.plan.is_calm:
            self._pass_time(self.plan.ttl / 2 + _CLEANING_UP)
            self.oracle.check_nothing_left(
                list(self.servers.values()),
                "after all leases were released, and nothing failed",
            )
        pauses = [client.process.paused_until for client in self.clients.values()]
        self._pass_time(max(self.faults_end_at, *pauses) - self.world.now)
        self._pass_time(_MOMENT)
        if not self._failed:
            self.oracle.check_all_reported()

    def _await_ttls(self) -> None:
        """End all clients; then their locks must expire."""
        for client in self.clients.values():
            client.process.die()
        longest = self.plan.max_ttl * 1.01 + 1.01 * self.oracle.delayed_by
        self._pass_time(self._all_delivered_at() - self.world.now)
        self._pass_time(longest)
        self.oracle.check_nothing_left(
            list(self.servers.values()),
            f"{longest:g} s after the last client has ended",
        )

    def _pass_time(self, seconds: float) -> None:
        end = self.world.now + max(0.0, seconds)
        while not self._failed and self.world.now < end:
            self.world.run(end)

    def _all_delivered_at(self) -> float:
        """Return when all messages on their way have arrived or are lost."""
        blocked = [server.hung_until for server in self.servers.values()]
        for client in self.clients.values():
            paths = self.network.paths_of(client.name)
            blocked += [path.cut_until for path in paths]
        return max(self.world.now, *blocked) + _ON_THE_WAY

    # -- processes besides the clients -------------------------------------------

    def _new_process(self, name: str, skew: float) -> Process:
        process = Process(self.world, name, rate=1.0, skew=skew)
        process.rng = self._rng(f"dice {name}")
        self.network.attach(process, _STEADY)
        self.later_processes.append(process)
        return process

    def _release_for(self, client: Client) -> None:
        """Release the locks of a dead client, as its parent process does."""
        parent = self._new_process(f"{client.name}'s parent", 0.0)
        redlock = new_redlock(parent, self.plan)

        def release() -> None:
            for key, base in client.bases:
                redlock.release_base(key, base)
            self.oracle.count("released for a dead client")

        Thread(target=release, process=parent).start()

    def _take_each_lock(self) -> None:
        """Take each lock from some majorities; its fence must be the greatest."""
        plan, world, oracle = self.plan, self.world, self.oracle
        # A wall clock that is far behind: the fence comes from the counters alone.
        judge = self._new_process("judge", -86400.0)
        redlock = new_redlock(judge, plan)
        done: list[bool] = []

        def take_all() -> None:
            try:
                if redlock.check().problems:
                    quarantine = redlock.timing.quarantine * 1.01
                    judge.clock.sleep(quarantine + _FINAL_WAIT)
                    redlock.check()
                for quorum in plan.final_quorums:
                    for path in self.network.paths_of(judge.name):
                        is_in = path.server.name in quorum
                        path.cut_until = 0.0 if is_in else float("inf")
                    for key in plan.keys:
                        lease = redlock.acquire(key, wait=_FINAL_WAIT)
                        redlock.release(lease)
                done.append(True)
            except LockUnavailable as error:
                oracle.find("lock unavailable", str(error))
            finally:
                world.stopped = True

        Thread(target=take_all, process=judge).start()
        world.run(world.now + _LONGEST)
        if not done and not self._failed:
            oracle.find("stuck", "the client that takes each lock has not ended")
