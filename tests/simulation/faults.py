"""How each kind of fault is done to the simulated world.

==============  ==============================================================
crash           a node's process ends; how: its memory afterwards (lose, keep,
                rollback), whether clients are told, whether it loads at first
snapshot        the state to which a later rollback goes back
flush           FLUSHALL on a node
forget scripts  SCRIPT FLUSH on a node
hang            a node answers nothing for a while
cut             nothing gets through between a client and a node for a while
slow            messages between them take longer for a while
reset           their connection breaks and loses what was on its way, at an
                instant or (trap) at an operation of the client
ambush          what happens when a client sends a node its nth call of a script;
                how: the script, then break (it is lost with the connection),
                delay (it and all after it), pause or death of the client
pause           a client stands still, at an instant or (trap) at an operation
death           a client is killed (its last messages arrive), or powered off;
                freed: another process releases what it held, knowing it dead
interrupt       an exception is thrown into a task (trap)
step            the wall clock of a client or a node is set
==============  ==============================================================
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_redlock.core.scripts import ALL_SCRIPTS
from tests.simulation.world import Interrupted, Thread, here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulation.clients import Client
    from tests.simulation.connection import Connection
    from tests.simulation.network import Network
    from tests.simulation.plan import Fault
    from tests.simulation.server import Server
    from tests.simulation.witness import Witness
    from tests.simulation.world import World

__all__ = ["Faults"]

_LOADING = 0.1  # seconds
_SCRIPTS = {script.name: script for script in ALL_SCRIPTS}


class Faults:
    """Does to the world what a plan says.

    Args:
        free: Called with a client that is dead, to release what it held.
    """

    def __init__(
        self,
        world: World,
        witness: Witness,
        servers: Mapping[str, Server],
        clients: Mapping[str, Client],
        free: Callable[[Client], None],
    ) -> None:
        self._world = world
        self._witness = witness
        self._network: Network = witness.network
        self._servers = servers
        self._clients = clients
        self._free = free

    def plan(self, faults: tuple[Fault, ...]) -> float:
        """Plan all of them. Return the instant at which the last one is over."""
        traps: dict[str, list[tuple[int, Callable[[], object]]]] = {}
        end = 0.0
        for fault in faults:
            if fault.kind == "ambush":
                self._lie_in_wait(fault)
                continue
            name = fault.kind.removesuffix(" trap").replace(" ", "_")
            action = partial(self._do, getattr(self, f"_{name}"), fault)
            if fault.kind.endswith("trap"):
                traps.setdefault(fault.on, []).append((int(fault.at), action))
            else:
                self._world.at(fault.at, action)
                end = max(end, fault.at + abs(fault.seconds) * (name != "step"))
        for client, planned in traps.items():
            self._clients[client].process.set_traps(planned)
        return end

    def _do(self, action: Callable[[Fault], None], fault: Fault) -> None:
        how = f" {fault.how.partition(' ')[0]}" if fault.how else ""
        self._witness.count(f"fault {fault.kind}{how}")
        action(fault)

    def _crash(self, fault: Fault) -> None:
        memory, said, *loading = fault.how.split()
        server = self._servers[fault.on]
        if not server.is_up:
            return
        server.crash(silently=said == "silent")
        restart = partial(server.restart, memory, loading=_LOADING * len(loading))
        self._world.at(self._world.now + fault.seconds, restart)

    def _snapshot(self, fault: Fault) -> None:
        self._servers[fault.on].take_snapshot()

    def _flush(self, fault: Fault) -> None:
        self._servers[fault.on].flush()

    def _forget_scripts(self, fault: Fault) -> None:
        self._servers[fault.on].forget_scripts()

    def _hang(self, fault: Fault) -> None:
        self._servers[fault.on].hang(fault.seconds)

    def _cut(self, fault: Fault) -> None:
        self._world.note(fault.on, f"is cut off from {fault.peer}")
        path = self._network.path(fault.on, fault.peer)
        path.cut_until = max(path.cut_until, self._world.now + fault.seconds)

    def _slow(self, fault: Fault) -> None:
        self._world.note(fault.on, f"has a slow way to {fault.peer}")
        path = self._network.path(fault.on, fault.peer)
        path.slow_until = self._world.now + fault.seconds
        path.slowness = fault.seconds / 4

    def _reset(self, fault: Fault) -> None:
        self._world.note(fault.on, f"loses its connection to {fault.peer}")
        self._network.path(fault.on, fault.peer).reset()

    def _lie_in_wait(self, fault: Fault) -> None:
        name, what = fault.how.split()
        script = _SCRIPTS[name]
        marks = script.sha.encode(), script.source.encode()
        path = self._network.path(fault.on, fault.peer)
        left = int(fault.at)

        def ambush(connection: Connection, data: bytes) -> None:
            nonlocal left
            left -= any(mark in data for mark in marks)
            if left > 0:
                return
            path.ambushes.remove(ambush)
            self._witness.count(f"fault ambush {what}")
            self._world.note(fault.on, f"{what} when it sends {name} to {fault.peer}")
            if what == "break":
                connection.break_(0.0, told=True)
            elif what == "delay":
                path.cut_until = max(path.cut_until, self._world.now + fault.seconds)
            elif what == "pause":
                path.process.pause(fault.seconds)
            else:
                path.process.die()

        path.ambushes.append(ambush)

    def _pause(self, fault: Fault) -> None:
        self._clients[fault.on].process.pause(fault.seconds)

    def _death(self, fault: Fault) -> None:
        client = self._clients[fault.on]
        client.is_powered_off = fault.how == "powered off"
        if fault.how == "killed freed" and not client.process.dead:
            self._world.at(self._world.now, self._free, client)
        client.process.die()

    def _interrupt(self, fault: Fault) -> None:
        thread: Thread = here()
        if not thread.interruptible:
            thread.process.postpone(partial(self._interrupt, fault))
            return
        self._world.note(fault.on, "is interrupted")
        raise Interrupted

    def _step(self, fault: Fault) -> None:
        if fault.on in self._servers:
            self._servers[fault.on].step_clock(fault.seconds)
        else:
            self._world.note(fault.on, f"steps its clock by {fault.seconds:+.3f} s")
            self._clients[fault.on].process.skew += fault.seconds
