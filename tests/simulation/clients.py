"""Client processes: the real core on simulated clocks, sockets and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.basics.secret import SecretUrl
from celery_redlock.basics.timing import Timing
from celery_redlock.errors import LockLost, LockUnavailable
from celery_redlock.locking import lock
from celery_redlock.locks.lease import Holder, LeaseState
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.scripts.keys import keys_of
from celery_redlock.wire.broadcast import Broadcast
from celery_redlock.wire.node import Node
from celery_redlock.wire.pubsub import WakeupListener
from celery_redlock.wire.url import NodeAddress
from tests.simulation.network import Selector
from tests.simulation.world import Interrupted, Process, Thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.lease import Lease
    from tests.simulation.oracles import Oracle
    from tests.simulation.plan import ClientPlan, Operation, Plan
    from tests.simulation.world import World

PREFIX = "redlock"
_LOOKS = 3  # at whether the lock was lost, while a body runs


class Client:
    """One process with its own services, one for each of the settings of the plan.

    Attributes:
        bases: The operation and the token base of each of its executions.
    """

    def __init__(
        self, world: World, oracle: Oracle, plan: Plan, part: ClientPlan
    ) -> None:
        self.world = world
        self.oracle = oracle
        self.name = part.name
        self.process = Process(world, part.name, rate=part.rate, skew=part.skew)
        oracle.network.attach(self.process, part.conditions)
        self._plan = plan
        self._services: dict[int, tuple[Redlock, Watchdog]] = {}
        self.process.on_death.append(self._close_connections)
        self.is_powered_off = False
        self.tasks = [Task(self, operations) for operations in part.tasks]
        self.bases: list[tuple[Operation, str]] = []
        self.leases: list[Lease] = []

    def service(self, settings: int) -> tuple[Redlock, Watchdog]:
        """Return the service with some settings, and its watchdog.

        Clients do not get later settings before the deployment has them.
        """
        if settings not in self.oracle.opened_settings:
            settings = 0
        if settings not in self._services:
            redlock = new_redlock(self.process, self._plan, settings)
            watchdog = Watchdog(redlock)
            redlock.nodes.resender = watchdog.resend_releases
            self._services[settings] = redlock, watchdog
        return self._services[settings]

    def start(self) -> None:
        """Start its tasks."""
        for task in self.tasks:
            task.thread.start()

    def _close_connections(self) -> None:
        for path in self.oracle.network.paths_of(self.name):
            for connection in list(path.connections):
                if self.is_powered_off:
                    connection.break_(0.0, silently=True)
                connection.close()
        self.oracle.task_ended()


class _Address(NodeAddress):
    """The address of a node, which is its name."""

    __slots__ = ()

    @property
    def server(self) -> str:
        """The host and port."""
        return self.name


def new_broadcast(
    addresses: Sequence[NodeAddress], clock: Any, timing: Timing
) -> Broadcast:
    """Return connections to the nodes over the simulated network."""
    connect_timeout = timing.connect_timeout
    selector: Any = Selector
    return Broadcast(
        [
            Node(each, index, clock=clock, connect_timeout=connect_timeout)
            for index, each in enumerate(addresses)
        ],
        clock=clock,
        timing=timing,
        new_selector=selector,
    )


def new_redlock(process: Process, plan: Plan, settings: int = 0) -> Redlock:
    """Return a service with settings of this plan."""
    names, max_ttl = plan.settings[settings].names, plan.settings[settings].max_ttl
    addresses = [_Address(name, SecretUrl(f"redis://{name}")) for name in names]
    clock: Any = process.clock
    ttl = min(plan.ttl, max_ttl)
    timing = Timing(ttl, max_ttl, plan.node_timeout, plan.connect_timeout)
    redlock = Redlock(
        addresses,
        ttl=ttl,
        max_ttl=max_ttl,
        node_timeout=plan.node_timeout,
        connect_timeout=plan.connect_timeout,
        prefix=PREFIX,
        clock=clock,
        transport=new_broadcast(addresses, clock, timing),
    )
    redlock.listener = WakeupListener(addresses, redlock.keys, timing, clock)
    return redlock


class Task:
    """One thread of a client, which carries out one operation after the other."""

    def __init__(self, client: Client, operations: Sequence[Operation]) -> None:
        self._client = client
        self._oracle = client.oracle
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
        self._oracle.task_ended()

    def _try(self, operation: Operation, base: str) -> None:
        try:
            self._clock.sleep(operation.after)
            self._client.bases.append((operation, base))
            self._log(f"wants to {operation.kind} {operation.key}")
            if operation.wait:
                self._oracle.wait_begun(self.thread, operation)
            getattr(self, operation.kind)(operation, base)
        except LockUnavailable as error:
            self._oracle.refused(self.thread, error)
            self._log(f"gets no lock: {error}")
        except LockLost as error:
            self._log(str(error))
        except Interrupted:
            self._log("was interrupted")

    def _log(self, text: str) -> None:
        self._client.world.log(self._client.name, text)

    # -- kinds of operations ---------------------------------------------------

    def run(self, operation: Operation, base: str) -> None:
        """Run a body under the lock, as applications do."""
        lost: list[Lease] = []
        redlock, watchdog = self._client.service(operation.settings)
        with lock(
            redlock,
            operation.wants,
            limit=operation.limit,
            rate=operation.rate,
            ttl=self._ttl(operation, redlock),
            wait=operation.wait,
            renew=operation.renews,
            hold_at_least=operation.keep,
            watchdog=watchdog,
            base=base,
            holder=self._holder(),
            on_acquired=self._acquired,
            on_lost=lost.append,
        ):
            for look in range(_LOOKS):
                self._clock.sleep(operation.hold / _LOOKS)
                if lost and operation.stops_on_loss:
                    break
                # The leases of several tasks, together. Others have their own time.
                if not look and self._client.tasks[1:]:
                    for lease in self._client.leases:
                        watchdog.renew_now(lease)

    @staticmethod
    def _ttl(operation: Operation, redlock: Redlock) -> float | None:
        return operation.ttl and min(operation.ttl, redlock.timing.max_ttl)

    def _service(self, operation: Operation) -> Redlock:
        return self._client.service(operation.settings)[0]

    def _holder(self) -> Holder:
        return Holder("", task="job", host=self._client.name)

    def _acquired(self, lease: Lease) -> None:
        self._oracle.watched(self.thread, lease)
        self._client.leases.append(lease)

    def manual(self, operation: Operation, base: str) -> None:
        """Acquire, extend and release with single calls."""
        redlock = self._service(operation)
        lease = self._acquire(operation, base)
        try:
            self._clock.sleep(operation.hold / 2)
            if operation.renews:
                redlock.extend(lease)
            self._clock.sleep(operation.hold / 2)
            lease.ensure(network=not operation.stops_on_loss)
        finally:
            redlock.release(lease, keep=operation.keep)
            self._oracle.count("released by a call")

    def drop(self, operation: Operation, base: str) -> None:
        """Acquire and never release."""
        lease = self._acquire(operation, base)
        if lease.state is LeaseState.HELD:
            self._clock.sleep(operation.hold)
            self._oracle.count("dropped")

    def inspect(self, operation: Operation, _: str) -> None:
        """Ask which client holds the lock, or the permits."""
        redlock = self._service(operation)
        if operation.limits:
            redlock.permits_in_use(operation.limits)
        else:
            redlock.inspect(operation.key)

    def check(self, operation: Operation, _: str) -> None:
        """Check the nodes, as a worker does when it starts."""
        self._service(operation).check()

    def _acquire(self, operation: Operation, base: str) -> Lease:
        redlock = self._service(operation)
        return redlock.acquire(
            keys_of(operation.key),
            self._ttl(operation, redlock),
            operation.wait,
            base=base,
            holder=self._holder(),
            limits=operation.limits,
        )
