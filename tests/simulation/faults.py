"""Carry out the faults of a plan in the simulated world.

==============  ==============================================================
crash           the process of a node ends; how: its memory after the restart (lose,
                keep, rollback), whether clients see a reset or silence, and
                whether it first answers that it is loading
snapshot        the state that a later rollback restores
flush           FLUSHALL on a node
come back       a node gets its snapshot back while it runs: it becomes a replica of a
                copy of itself, and a master again
evict           a node is set to evict keys; soon it is full, for a moment:
                all locks are gone, and its membership stays
forget meta     DEL redlock:meta on a node: it keeps its locks
lead            a name leads one client, or all, to another server from now on: to
                the one in "how", over connections that it makes later
command         an operator runs a command: see `operators`; how: the command, and
                "dies n" if its process is killed at its nth operation
forget scripts  SCRIPT FLUSH on a node
hang            a node answers nothing for a while
cut             no message passes between a client and a node for a while
slow            messages between them take longer for a while
reset           their connections break and lose the messages on their way
on call         happens when a client sends a node its nth call of a script; how: the
                script, then break (the call is lost with the connection), delay (of
                the call and all after it), pause or death of the client
pause           a client process stops for a while
death           a client is killed (its last messages arrive) or powered off;
                "released": another process then releases the locks of the dead one
interrupt       an exception is raised in a task
clock step      the wall clock of a client or a node is set
==============  ==============================================================

"... at operation" happens at the nth operation of a client: see `Process.checkpoint`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_redlock.members.view import CLOSED, View
from celery_redlock.scripts import ALL_SCRIPTS
from tests.simulation.world import Interrupted, current_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulation.clients import Client
    from tests.simulation.network import Connection, Network
    from tests.simulation.oracles import Oracle
    from tests.simulation.plan import Fault, Settings
    from tests.simulation.server import Server
    from tests.simulation.world import World

_LOADING = 0.1  # seconds
_FULL_AFTER = 0.3  # seconds; scripts look at the policy once in a second only
_SCRIPTS = {script.name: script for script in ALL_SCRIPTS}


class Faults:
    """Schedules and carries out faults.

    Args:
        release_for: Called with a dead client, to release its locks.
        run_command: Called with the name of an operator, a command, and the number of
            the operation at which its process is killed; 0 for none.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (what faults act on)
        self,
        world: World,
        oracle: Oracle,
        servers: Mapping[str, Server],
        clients: Mapping[str, Client],
        release_for: Callable[[Client], None],
        run_command: Callable[[str, str, int], None],
    ) -> None:
        self._world = world
        self._oracle = oracle
        self._network: Network = oracle.network
        self._servers = servers
        self._clients = clients
        self._release_for = release_for
        self._run_command = run_command
        self._about_to_forget: set[str] = set()

    def schedule(self, faults: tuple[Fault, ...]) -> float:
        """Schedule all faults. Return the instant at which the last one is over."""
        triggers: dict[str, list[tuple[int, Callable[[], object]]]] = {}
        end = 0.0
        for fault in faults:
            if fault.kind == "on call":
                self._schedule_on_call(fault)
                continue
            name, _, at_operation = fault.kind.partition(" at ")
            method = getattr(self, f"_{name.replace(' ', '_')}")
            action = partial(self._carry_out, method, fault)
            if at_operation:
                triggers.setdefault(fault.on, []).append((int(fault.at), action))
            else:
                self._world.schedule(fault.at, action)
                lasts = 0.0 if name == "clock step" else abs(fault.seconds)
                end = max(end, fault.at + lasts)
        for client, planned in triggers.items():
            self._clients[client].process.set_triggers(planned)
        return end

    def _carry_out(self, method: Callable[[Fault], None], fault: Fault) -> None:
        how = f" {fault.how.partition(' ')[0]}" if fault.how else ""
        self._oracle.count(f"fault {fault.kind}{how}")
        method(fault)

    def _may_lose_memory(self, server: Server) -> bool:
        """Tell whether the deployment promises anything if this server forgets now.

        Of the members that a reconfiguration has closed, one at least must remember
        it, where all clients find it: see ``tests.model.reconfiguration``. The same
        is true of the members of settings that were left, for as long as clients
        have them: docs/explanation/why-it-is-safe.md.
        """
        others = [each for each in self._servers.values() if each is not server]
        others = [
            it
            for it in others
            if not self._network.is_led_away(it.name)
            and it.name not in self._about_to_forget
        ]
        if server.is_closed and not any(each.is_closed for each in others):
            return False
        in_use = {0, *self._oracle.opened_settings}
        return not any(
            _has_left(server, settings)
            and not any(_has_left(other, settings) for other in others)
            for settings in map(self._oracle.settings.__getitem__, sorted(in_use))
        )

    def _crash(self, fault: Fault) -> None:
        memory, visible, *loading = fault.how.split()
        server = self._servers[fault.on]
        if not server.is_up or not self._may_lose_memory(server):
            return
        server.crash(silently=visible == "silent")
        if memory != "keep":
            self._about_to_forget.add(server.name)

        def restart() -> None:
            server.restart(memory, loading=_LOADING * len(loading))
            self._about_to_forget.discard(server.name)

        self._world.schedule(self._world.now + fault.seconds, restart)

    def _snapshot(self, fault: Fault) -> None:
        self._servers[fault.on].take_snapshot()

    def _flush(self, fault: Fault) -> None:
        server = self._servers[fault.on]
        if self._may_lose_memory(server):
            server.flush()

    def _come_back(self, fault: Fault) -> None:
        server = self._servers[fault.on]
        if self._may_lose_memory(server):
            server.come_back()

    def _evict(self, fault: Fault) -> None:
        server = self._servers[fault.on]
        if not self._may_lose_memory(server):
            return
        server.may_evict()
        self._about_to_forget.add(server.name)

        def evict() -> None:
            server.evict()
            self._about_to_forget.discard(server.name)

        self._world.schedule(self._world.now + _FULL_AFTER, evict)

    def _forget_meta(self, fault: Fault) -> None:
        server = self._servers[fault.on]
        if self._may_lose_memory(server):
            server.forget_membership()

    def _lead(self, fault: Fault) -> None:
        if not self._may_lose_memory(self._servers[fault.on]):
            return
        who = fault.peer or "every client"
        self._world.log(fault.on, f"leads {who} to {fault.how}")
        self._oracle.led(fault.on)
        self._network.lead(fault.on, fault.how, fault.peer)

    def _command(self, fault: Fault) -> None:
        command, _, dies_at = fault.how.partition(" dies ")
        self._run_command(fault.on, command, int(dies_at or 0))

    def _forget_scripts(self, fault: Fault) -> None:
        self._servers[fault.on].forget_scripts()

    def _hang(self, fault: Fault) -> None:
        self._servers[fault.on].hang(fault.seconds)

    def _cut(self, fault: Fault) -> None:
        self._world.log(fault.on, f"is cut off from {fault.peer}")
        path = self._network.path(fault.on, fault.peer)
        path.cut_until = max(path.cut_until, self._world.now + fault.seconds)

    def _slow(self, fault: Fault) -> None:
        self._world.log(fault.on, f"has a slow path to {fault.peer}")
        path = self._network.path(fault.on, fault.peer)
        path.slow_until = self._world.now + fault.seconds
        path.slowness = fault.seconds / 4

    def _reset(self, fault: Fault) -> None:
        self._world.log(fault.on, f"loses its connection to {fault.peer}")
        self._network.path(fault.on, fault.peer).reset()

    def _schedule_on_call(self, fault: Fault) -> None:
        name, action = fault.how.split()
        script = _SCRIPTS[name]
        marks = script.sha.encode(), script.source.encode()
        path = self._network.path(fault.on, fault.peer)
        left = int(fault.at)

        def before_send(connection: Connection, data: bytes) -> None:
            nonlocal left
            left -= any(mark in data for mark in marks)
            if left > 0:
                return
            path.before_send.remove(before_send)
            self._oracle.count(f"fault on call {action}")
            self._world.log(fault.on, f"{action} as it sends {name} to {fault.peer}")
            if action == "break":
                connection.break_(0.0, silently=False)
            elif action == "delay":
                path.cut_until = max(path.cut_until, self._world.now + fault.seconds)
            elif action == "pause":
                path.process.pause(fault.seconds)
            else:
                path.process.die()

        path.before_send.append(before_send)

    def _pause(self, fault: Fault) -> None:
        self._clients[fault.on].process.pause(fault.seconds)

    def _death(self, fault: Fault) -> None:
        client = self._clients[fault.on]
        client.is_powered_off = fault.how == "powered off"
        if fault.how == "killed released" and not client.process.dead:
            self._world.schedule(self._world.now, self._release_for, client)
        client.process.die()

    def _interrupt(self, fault: Fault) -> None:
        thread = current_thread()
        if not thread.interruptible:
            thread.process.postpone(partial(self._interrupt, fault))
            return
        self._world.log(fault.on, "is interrupted")
        raise Interrupted

    def _clock_step(self, fault: Fault) -> None:
        if fault.on in self._servers:
            self._servers[fault.on].step_clock(fault.seconds)
        else:
            self._world.log(fault.on, f"sets its clock by {fault.seconds:+.3f} s")
            self._clients[fault.on].process.skew += fault.seconds


def _has_left(server: Server, settings: Settings) -> bool:
    """Tell whether a member by these settings remembers that there are others."""
    view = View.parse(server.config.removeprefix(CLOSED))
    wanted = settings.max_ttl, tuple(sorted(settings.names))
    return (
        server.name in settings.names
        and view is not None
        and (view.configuration.max_ttl, view.configuration.labels) != wanted
    )
