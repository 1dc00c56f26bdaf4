"""Play one plan in the simulated world, and check the rules."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from celery_redlock.errors import LockHeld, LockUnavailable, RedlockError
from celery_redlock.locks.limits import START_WITHIN
from celery_redlock.members.view import View, refusal
from celery_redlock.operations.reconfigure import reconfigure
from celery_redlock.wire.quorum import VoteKind, quorum_of
from tests.simulation.clients import Client, new_redlock
from tests.simulation.faults import Faults
from tests.simulation.network import Conditions, Network
from tests.simulation.operators import run_command
from tests.simulation.oracles import Finding, Oracle, WakeupOracle
from tests.simulation.server import Server, ServerClock
from tests.simulation.world import Killed, Process, Thread, World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from celery_redlock.locks.limits import Limits
    from celery_redlock.locks.redlock import Redlock
    from tests.simulation.plan import Plan
    from tests.simulation.recorder import Recorder

_STEADY = Conditions(0.0002, 0.001)

# Seconds.
_LONGEST = 600.0  # for all clients to end
_FINAL_WAIT = 3.0  # for one lock at the end: reconnecting, and pauses between tries
_ON_THE_WAY = 2.0  # after which all messages have arrived
_MOMENT = 0.01
_BETWEEN_LOOKS = 0.25  # at whether the nodes vote
_QUARANTINES = 3  # after which all nodes vote again
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


def play(
    plan: Plan,
    *,
    traced: bool = False,
    ignored: Iterable[str] = (),
    recorder: Recorder | None = None,
) -> Outcome:
    """Play one history. Needs the block of ``simulated_core``.

    Args:
        plan: The plan.
        traced: Record each step.
        ignored: Kinds of findings that do not count.
        recorder: Writes the history down for the specification.
    """
    history = _History(plan, traced=traced, ignored=frozenset(ignored))
    history.oracle.recorder = recorder
    return history.play()


class _History:
    def __init__(self, plan: Plan, *, traced: bool, ignored: frozenset[str]) -> None:
        self.plan = plan
        self.world = World(traced=traced)
        self.world.rng = self._rng("identities")
        self.network = Network(self._rng)
        self.oracle = Oracle(
            self.world,
            self.network,
            min(len(settings.names) for settings in plan.settings),
            plan.settings,
            node_timeout=plan.node_timeout,
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
        self.operators: dict[str, Process] = {}
        self._aborted: set[int] = set()  # settings without clients
        self._is_undone = False  # the last move
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
            *(self._await_ttls, self._await_operators, self._take_each_lock),
        ):
            act()
            if self._failed:
                return

    def _begin(self) -> None:
        plan = self.plan
        if plan.initialized:
            self._initialize()
        self.operators = {
            fault.on: self._new_process(fault.on, 0.0)
            for fault in plan.faults
            if fault.kind == "command"
        }
        faults = Faults(
            *(self.world, self.oracle, self.servers, self.clients),
            *(self._release_for, self._run_command),
        )
        self.faults_end_at = faults.schedule(plan.faults)
        for client in self.clients.values():
            client.start()

    def _initialize(self) -> None:
        service, _ = next(iter(self.clients.values())).service(0)
        identities = {name: self.servers[name].join() for name in service.labels}
        configuration = service.guard.configuration
        view = View.first_of_epoch(configuration, identities, before=None)
        for name in service.labels:
            self.servers[name].initialize(view)

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
        longest = self.plan.longest_max_ttl * 1.01
        if not self.plan.ends_soon:
            longest += 1.01 * self.oracle.delayed_by
        self._pass_time(self._all_delivered_at() - self.world.now)
        self._pass_time(longest)
        self.oracle.check_nothing_left(
            list(self.servers.values()),
            f"{longest:g} s after the last client has ended",
        )
        if self.plan.longest_period:
            longest += 1.02 * (self.plan.longest_period + START_WITHIN)
            self._pass_time(longest)
            self.oracle.check_nothing_left(
                list(self.servers.values()),
                f"{longest:g} s after the last client has ended",
                with_starts=True,
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
        parent = self._new_process(f"parent of {client.name}", 0.0)

        def release() -> None:
            for operation, base in client.bases:
                redlock = new_redlock(parent, self.plan, operation.settings)
                redlock.release_base(operation.key, base, operation.limits)
            self.oracle.count("released for a dead client")

        Thread(target=release, process=parent).start()

    def _run_command(self, name: str, command: str, dies_at: int) -> None:
        """Let an operator run a command."""
        operator = self.operators[name]
        if dies_at:
            operator.set_triggers([(dies_at, operator.die)])
        run_command(operator, self.plan, self.oracle, command)

    def _await_operators(self) -> None:
        """Wait for the end of commands, which may still close nodes."""
        threads = [it for each in self.operators.values() for it in each.threads]
        while not self._failed and any(
            thread.is_alive() and not thread.process.dead for thread in threads
        ):
            self._pass_time(_BETWEEN_LOOKS)

    def _take_each_lock(self) -> None:
        """Take each lock from some majorities; its fence must be the greatest."""
        # A wall clock that is far behind: the fence comes from the counters alone.
        judge = self._new_process("judge", -86400.0)
        done: list[bool] = []

        def take_all() -> None:
            try:
                number = self._settled(judge)
                quorums = () if number is None else self._final_quorums(number)
                # One for all: an attempt fails while its connections are cut, and must
                # leave nothing in the way of the next one.
                redlock = new_redlock(judge, self.plan, number or 0)
                for quorum in quorums:
                    for name in redlock.labels:
                        path = self.network.path_by_name(judge.name, name)
                        path.cut_until = 0.0 if name in quorum else float("inf")
                    for key, limits in self.plan.wants:
                        self._take_all(redlock, key, limits)
                done.append(True)
            except LockUnavailable as error:
                self.oracle.find("lock unavailable", str(error))
            finally:
                self.world.stopped = True

        Thread(target=take_all, process=judge).start()
        self.world.run(self.world.now + _LONGEST)
        if not done and not self._failed:
            text = "the client that takes each lock has not ended"
            self.oracle.find("stuck", text)

    @staticmethod
    def _take_all(redlock: Redlock, key: str, limits: Limits) -> None:
        """Take all permits at once, and none more; then release them.

        The work of none begins, so there is no start.
        """
        most = min((limit.most for limit in limits), default=1)
        leases = [
            redlock.carry_out(redlock.acquiring(key, wait=_FINAL_WAIT, limits=limits))
            for _ in range(most)
        ]
        if limits:
            with contextlib.suppress(LockHeld):
                # The oracle finds one permit too many.
                redlock.carry_out(redlock.acquiring(key, limits=limits))
        for lease in leases:
            redlock.release(lease)

    def _final_quorums(self, number: int) -> Sequence[Sequence[str]]:
        if not number:
            return self.plan.final_quorums
        names = self.plan.settings[number].names
        quorum = quorum_of(len(names))
        return names[:quorum], names[-quorum:]

    # -- at the end --------------------------------------------------------------

    def _settled(self, judge: Process) -> int | None:
        """Wait until all nodes of some settings vote, and return the settings.

        Nodes come back to the vote by themselves, unless operators have left a
        reconfiguration undone or a name leads to a server that was replaced. Then
        an operator does what the message says.

        Returns:
            None if that is left open: a move can neither be finished nor taken back,
            after a name had led clients to two servers. The deployment rests on names
            that do not.
        """
        problems = self._wait_for_votes(judge)
        for repair in (self._finish_reconfigurations, self._delete_memberships):
            if isinstance(problems, list):
                repair(judge)
                problems = self._wait_for_votes(judge)
        if isinstance(problems, list):
            if self.oracle.led_apart and self._is_undone:
                self.oracle.count("move that is left to operators")
                return None
            self.oracle.find("node does not vote", "; ".join(problems))
            raise Killed
        return problems

    def _wait_for_votes(self, judge: Process) -> int | list[str]:
        """Return the settings in which all nodes vote, or their problems."""
        plan, clock = self.plan, judge.clock
        numbers = [0, *sorted(self.oracle.opened_settings - self._aborted)]
        services = {number: new_redlock(judge, plan, number) for number in numbers}
        quarantine = max(each.timing.quarantine for each in services.values())
        end = clock.monotonic() + _QUARANTINES * quarantine + _FINAL_WAIT
        problems: list[str] = []
        while clock.monotonic() < end:
            problems.clear()
            for number, redlock in services.items():
                found = redlock.check().problems
                if not found:
                    return number
                problems += [f"settings {number}: {each}" for each in found]
            clock.sleep(_BETWEEN_LOOKS)
        return problems

    def _finish_reconfigurations(self, judge: Process) -> None:
        """Run all reconfigurations again, or abort them.

        Clients of aborted ones have ended then: they would take nodes without memory
        for members of theirs, again and again.
        """
        self.oracle.count("reconfigurations finished at the end")
        finished: set[int] = set()
        for move in self.plan.moves:
            old, new = (new_redlock(judge, self.plan, number) for number in move)
            self._is_undone = True
            for is_abort in (False, True):
                with contextlib.suppress(RedlockError):
                    reconfigure(old, new, abort=is_abort, patience=_FINAL_WAIT)
                    (self._aborted if is_abort else finished).add(move[1])
                    self._is_undone = False
                    break
        self._aborted -= finished

    def _delete_memberships(self, judge: Process) -> None:
        """Delete redlock:meta on nodes that refuse the others, where it says so.

        The others are those that have the view of most, and may wait for these nodes.
        """
        for number in (0, *self.oracle.opened_settings - self._aborted):
            redlock = new_redlock(judge, self.plan, number)
            ballot = redlock.check().ballot
            configs = [
                self.network.path_by_name(judge.name, name).server.config
                for name in ballot.labels
            ]
            has_majority = configs.count(redlock.guard.config) >= ballot.quorum
            for index in ballot.indexes(VoteKind.REFUSED):
                name = ballot.labels[index]
                server = self.network.path_by_name(judge.name, name).server
                view = View.parse(server.config)
                _, remedy = refusal(server.config, redlock.guard.config)
                has_settings = (
                    view and view.configuration == redlock.guard.configuration
                )
                if has_settings or (has_majority and "is deleted" in remedy):
                    self.oracle.count("membership deleted at the end")
                    server.forget_membership()
