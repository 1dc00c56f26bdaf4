"""The modules that the core uses, replaced by simulated ones while a history is played.

``_PATCHES`` lists all places in which the core touches the world: threads, locks,
queues, sockets, clocks and random numbers. The code above them runs unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_redlock import locking
from celery_redlock.basics import backoff, process
from celery_redlock.locks import lease, redlock
from celery_redlock.locks import renewal_schedule as schedule
from celery_redlock.members import deployment, restart_guard, view
from celery_redlock.wire import broadcast, client, connector, pubsub
from tests.simulation.network import Selector, Waker
from tests.simulation.observed_guard import ObservedGuard
from tests.simulation.observed_lease import ObservedLease
from tests.simulation.world import Thread as SimThread
from tests.simulation.world import World, current_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.wire.url import NodeAddress


class Lock:
    """A lock between the threads of one process; waiters get it in order."""

    __slots__ = ("_owned", "_waiters")

    def __init__(self) -> None:
        self._owned = False
        self._waiters: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT002  (as in threading)
        """Take it; wait for at most ``timeout`` seconds, or for ever if negative."""
        if World.current.running is None and not self._owned:  # a client is made
            self._owned = True
            return True
        thread = current_thread()
        thread.process.checkpoint()
        if not self._owned:
            self._owned = True
            return True
        if not blocking:
            return False
        self._waiters.append(thread)
        if thread.park(None if timeout < 0 else timeout):
            return True  # `release` has passed it on
        if thread in self._waiters:
            self._waiters.remove(thread)
        return False

    def release(self) -> None:
        """Pass it on to the thread that has waited longest."""
        while self._waiters:
            if self._waiters.popleft().wake():
                return
        self._owned = False

    def locked(self) -> bool:
        """Tell whether a thread has taken it."""
        return self._owned

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that only its owner can release. No thread here takes it twice."""

    __slots__ = ("_owner",)

    def __init__(self) -> None:
        super().__init__()
        self._owner: SimThread | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT002  (as in threading)
        """Take it; wait for at most ``timeout`` seconds, or for ever if negative."""
        taken = super().acquire(blocking, timeout)
        if taken:
            self._owner = current_thread()
        return taken

    def release(self) -> None:
        """Pass it on to the thread that has waited longest.

        Raises:
            RuntimeError: Another thread owns it.
        """
        if self._owner is not current_thread():
            raise RuntimeError("cannot release un-acquired lock")
        self._owner = None
        super().release()


class Event:
    """A flag that threads can wait for."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[SimThread] = []

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def clear(self) -> None:
        """Clear the flag."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag, at most so many seconds; return whether it is set."""
        thread = current_thread()
        thread.process.checkpoint()
        if not self._is_set:
            self._waiters.append(thread)
            thread.park(timeout)
            if thread in self._waiters:
                self._waiters.remove(thread)
        return self._is_set


class _Threading:
    """Replaces the module ``threading``."""

    Event = Event
    Thread = SimThread
    Lock = Lock
    RLock = RLock
    TIMEOUT_MAX = threading.TIMEOUT_MAX
    current_thread = staticmethod(current_thread)

    @staticmethod
    def get_ident() -> int:
        """Return the number of this thread in its process."""
        return current_thread().ident


class _LowLevelThreading:
    """Replaces the module ``_thread``."""

    @staticmethod
    def start_new_thread(
        function: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        """Run the function in a new thread."""
        SimThread(target=function, args=args).start()


class _Random:
    """Replaces the module ``random``."""

    @staticmethod
    def uniform(low: float, high: float) -> float:
        """Return a random number of the calling process."""
        return current_thread().process.rng.uniform(low, high)


class _Secrets:
    """Replaces the module ``secrets``, by names that are unique and readable."""

    @staticmethod
    def token_hex(size: int) -> str:
        """Return the next token of this process."""
        process = current_thread().process
        process.tokens += 1
        return f"{process.name}x{process.tokens}".rjust(2 * size, "0")


class _ChannelSecrets:
    """Replaces the module ``secrets`` where the name of a channel is made."""

    @staticmethod
    def token_hex(_: int) -> str:
        """Return a name that no other process of this world has."""
        return World.current.oracle.network.new_channel()


class _Identities:
    """Replaces the module ``secrets`` where identities and epochs are made."""

    @staticmethod
    def token_hex(size: int) -> str:
        """Return a random number."""
        return f"{World.current.rng.getrandbits(8 * size):0{2 * size}x}"


class _SystemClock:
    """Replaces the clock of operators' commands."""

    @staticmethod
    def monotonic() -> float:
        """Return the seconds of the calling process."""
        return current_thread().process.clock.monotonic()

    @staticmethod
    def wall() -> float:
        """Return the wall clock of the calling process."""
        return current_thread().process.clock.wall()

    @staticmethod
    def sleep(seconds: float) -> None:
        """Pause the calling thread."""
        current_thread().process.clock.sleep(seconds)


def _open_connection(address: NodeAddress, timeout: float) -> Any:
    return World.current.oracle.network.open_connection(address, timeout)


def _open_blocking(address: NodeAddress, timeout: float, *, load_scripts: bool) -> Any:
    network = World.current.oracle.network
    return network.open_blocking_connection(address, timeout, load_scripts=load_scripts)


_PATCHES: tuple[tuple[Any, str, Any], ...] = (
    (process, "_thread", _LowLevelThreading),
    (process, "threading", _Threading),
    (connector, "open_connection", _open_connection),
    (client, "open_connection", _open_blocking),
    (client, "threading", _Threading),
    (client, "SYSTEM_CLOCK", _SystemClock),
    (deployment, "SYSTEM_CLOCK", _SystemClock),
    (broadcast, "threading", _Threading),
    (broadcast, "Waker", Waker),
    # A real process that ends waits for the requests of all; see `finish_requests`.
    (broadcast, "_all", weakref.WeakSet()),
    (schedule, "threading", _Threading),
    # With the real values all leases here, which last a second or two, are urgent.
    (schedule, "_LONGEST_SLEEP", 0.2),
    (schedule, "_SOON", 0.25),
    (locking, "threading", _Threading),
    (pubsub, "threading", _Threading),
    (pubsub, "new_selector", Selector),
    (pubsub, "secrets", _ChannelSecrets),
    (backoff, "random", _Random),
    (lease, "secrets", _Secrets),
    (restart_guard, "secrets", _Identities),
    (view, "secrets", _Identities),
    (redlock, "Lease", ObservedLease),
    (redlock, "RestartGuard", ObservedGuard),
)


class _HereOnly:
    """A replacement for the thread of the simulation; all others see the real thing.

    A test before may have left a thread of the core that goes on, or that begins only
    now, on a busy machine. It would take simulated parts into the real world.
    """

    def __init__(self, real: Any, simulated: Any) -> None:
        self._real, self._simulated = real, simulated
        self._thread = (
            threading.get_ident()
        )  # all simulated threads are greenlets of it

    def _one(self) -> Any:
        is_here = threading.get_ident() == self._thread
        return self._simulated if is_here else self._real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._one(), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._one()(*args, **options)


_WHOLE = {"_all", "_LONGEST_SLEEP", "_SOON", "Lease", "RestartGuard"}


@contextlib.contextmanager
def simulated_core() -> Iterator[None]:
    """Run the core in the simulated world while the block runs, in this thread."""
    with contextlib.ExitStack() as stack:
        for module, name, simulated in _PATCHES:
            whole = name in _WHOLE
            part = simulated if whole else _HereOnly(getattr(module, name), simulated)
            stack.enter_context(mock.patch.object(module, name, part))
        logger = logging.getLogger("celery_redlock")
        before = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        stack.callback(logger.setLevel, before)
        yield
