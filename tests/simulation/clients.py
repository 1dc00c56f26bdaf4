"""Client processes: the real core on simulated clocks, sockets and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core.address import NodeAddress
from celery_redlock.core.fanout import Fanout
from celery_redlock.core.lease import Holder, LeaseState
from celery_redlock.core.node import Node
from celery_redlock.core.redlock import Redlock
from celery_redlock.core.renewal import Watchdog
from celery_redlock.core.timing import Timing
from celery_redlock.core.wakeup import Ears
from celery_redlock.errors import LockLost, LockUnavailable
from celery_redlock.locking import lock
from tests.simulation.network import Selector
from tests.simulation.world import Interrupted, Process, Thread, here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.lease import Lease
    from tests.simulation.plan import ClientPlan, Operation, Plan
    from tests.simulation.witness import Witness
    from tests.simulation.world import World

__all__ = ["Client", "Task"]

PREFIX = "redlock"
_LOOKS = 3  # at whether the lock was lost, while a body runs


class Client:
    """One process with a service of its own, and a watchdog.

    Attributes:
        bases: Token bases of its executions, by the locks they were after.
    """

    def __init__(
        self, world: World, witness: Witness, plan: Plan, about: ClientPlan
    ) -> None:
        self.world = world
        self.witness = witness
        self.name = about.name
        self.process = Process(world, about.name, rate=about.rate, skew=about.skew)
        witness.network.attach(self.process, about.weather)
        self.redlock = new_redlock(self.process, plan)
        self.watchdog = Watchdog(self.redlock)
        self.process.on_death.append(self._hang_up)
        self.is_powered_off = False
        self.tasks = [Task(self, operations) for operations in about.tasks]
        self.bases: list[tuple[str, str]] = []

    def start(self) -> None:
        """Start its tasks."""
        for task in self.tasks:
            task.thread.start()

    def _hang_up(self) -> None:
        for path in self.witness.network.paths_of(self.name):
            for connection in list(path.connections):
                if self.is_powered_off:
                    connection.break_(0.0, told=False)
                connection.close()
        self.witness.task_ended()


class _Address(NodeAddress):
    """The address of a node, whose name tells it from others without any parsing."""

    __slots__ = ()

    @property
    def server(self) -> str:
        """Where it listens."""
        return self.name


def new_redlock(process: Process, plan: Plan) -> Redlock:
    """Build the service as a client of this plan has it."""
    addresses = [_Address(node.name, f"redis://{node.name}") for node in plan.nodes]
    clock: Any = process.clock
    timing = Timing(plan.ttl, plan.max_ttl, plan.node_timeout, plan.connect_timeout)
    nodes = [
        Node(address, clock=clock, connect_timeout=plan.connect_timeout)
        for address in addresses
    ]
    selector: Any = Selector
    transport = Fanout(nodes, clock=clock, timing=timing, new_selector=selector)
    redlock = Redlock(
        addresses,
        ttl=plan.ttl,
        max_ttl=plan.max_ttl,
        node_timeout=plan.node_timeout,
        connect_timeout=plan.connect_timeout,
        prefix=PREFIX,
        clock=clock,
        transport=transport,
    )
    redlock.ears = Ears(addresses, PREFIX, timing, clock)
    return redlock


class Task:
    """One thread of a client, which does one thing after the other."""

    def __init__(self, client: Client, operations: Sequence[Operation]) -> None:
        self._client = client
        self._operations = operations
        self._clock = client.process.clock
        self.is_done = False
        self.thread = Thread(
            target=self._run, process=client.process, interruptible=True
        )

    def _run(self) -> None:
        for number, operation in enumerate(self._operations):
            self._try(operation, f"{self._client.name}-{self.thread.ident}-{number}")
        self.is_done = True
        self._client.witness.task_ended()

    def _try(self, operation: Operation, base: str) -> None:
        client, handovers = self._client, self._client.witness.handovers
        try:
            self._clock.sleep(operation.after)
            client.bases.append((operation.key, base))
            self._note(f"wants to {operation.kind} {operation.key}")
            if handovers and operation.wait:
                handovers.begin(self.thread, operation.key)
            getattr(self, operation.kind)(operation, base)
        except LockUnavailable as error:
            if handovers:
                handovers.give_up(self.thread)
            client.witness.refused(error)
            self._note(f"gets no lock: {error}")
        except LockLost as error:
            self._note(str(error))
        except Interrupted:
            self._note("was interrupted")

    def _note(self, what: str) -> None:
        self._client.world.note(self._client.name, what)

    # -- kinds of operations ---------------------------------------------------

    def run(self, operation: Operation, base: str) -> None:
        """Run a body under the lock, as people do."""
        lost: list[Lease] = []
        client = self._client
        with lock(
            client.redlock,
            operation.key,
            ttl=operation.ttl,
            wait=operation.wait,
            renew=operation.renews,
            hold_at_least=operation.keep,
            watchdog=client.watchdog,
            base=base,
            facts=Holder("", task="job", host=client.name),
            on_acquired=self._acquired,
            on_lost=lost.append,
        ):
            for _ in range(_LOOKS):
                self._clock.sleep(operation.hold / _LOOKS)
                if lost and operation.obeys:
                    break

    def _acquired(self, lease: Lease) -> None:
        witness = self._client.witness
        witness.watches(lease)
        if witness.handovers:
            witness.handovers.end(self.thread)

    def manual(self, operation: Operation, base: str) -> None:
        """Acquire, extend and release by hand."""
        redlock = self._client.redlock
        lease = self._acquire(operation, base)
        try:
            self._clock.sleep(operation.hold / 2)
            if operation.renews:
                redlock.extend(lease)
            self._clock.sleep(operation.hold / 2)
            lease.ensure(network=not operation.obeys)
        finally:
            redlock.release(lease, keep=operation.keep)
            self._client.witness.count("released by hand")

    def drop(self, operation: Operation, base: str) -> None:
        """Acquire and never release."""
        lease = self._acquire(operation, base)
        if lease.state is LeaseState.HELD:
            self._clock.sleep(operation.hold)
            self._client.witness.count("dropped")

    def look(self, operation: Operation, _: str) -> None:
        """Ask who holds the lock."""
        self._client.redlock.inspect(operation.key)

    def check(self, _: Operation, __: str) -> None:
        """Look at the nodes, as a worker does when it starts."""
        self._client.redlock.check()

    def _acquire(self, operation: Operation, base: str) -> Lease:
        return self._client.redlock.acquire(
            operation.key,
            operation.ttl,
            operation.wait,
            base=base,
            facts=Holder("", task="job", host=here().process.name),
        )
