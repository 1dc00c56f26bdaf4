"""Stand-ins for what the core takes from ``threading`` and ``queue``."""

from __future__ import annotations

import queue
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.world import Thread as SimThread
from tests.simulation.world import here

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SimLowLevel", "SimQueueModule", "SimThreading"]


class Lock:
    """A lock between the threads of one process; first come, first served."""

    __slots__ = ("_owned", "_waiters")

    def __init__(self) -> None:
        self._owned = False
        self._waiters: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT002  (as in threading)
        """Take it; wait for at most ``timeout`` seconds, or for ever if negative."""
        thread = here()
        thread.process.operate()
        if not self._owned:
            self._owned = True
            return True
        if not blocking:
            return False
        self._waiters.append(thread)
        if thread.park(None if timeout < 0 else timeout):
            return True  # handed over by whoever released it
        if thread in self._waiters:
            self._waiters.remove(thread)
        return False

    def release(self) -> None:
        """Give it to who has waited longest."""
        while self._waiters:
            if self._waiters.popleft().wake():
                return
        self._owned = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that its owner only can give back; nobody here takes it twice."""

    __slots__ = ("_owner",)

    def __init__(self) -> None:
        super().__init__()
        self._owner: SimThread | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT002  (as in threading)
        """Take it; wait for at most ``timeout`` seconds, or for ever if negative."""
        taken = super().acquire(blocking, timeout)
        if taken:
            self._owner = here()
        return taken

    def release(self) -> None:
        """Give it to who has waited longest.

        Raises:
            RuntimeError: It is somebody else's.
        """
        if self._owner is not here():
            raise RuntimeError("cannot release un-acquired lock")
        self._owner = None
        super().release()


class SimpleQueue:
    """A queue with one reader."""

    __slots__ = ("_items", "_reader")

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._reader: SimThread | None = None

    def put(self, item: Any) -> None:
        """Append an item."""
        self._items.append(item)
        if self._reader is not None:
            self._reader.wake()

    def empty(self) -> bool:
        """Tell whether there is nothing in it."""
        return not self._items

    def get(self, timeout: float | None = None) -> Any:
        """Take the first item; wait for one.

        Raises:
            queue.Empty: There was none for ``timeout`` seconds.
        """
        thread = here()
        thread.process.operate()
        if not self._items:
            self._reader = thread
            thread.park(timeout)
            self._reader = None
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class Event:
    """Something that threads wait for to happen."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[SimThread] = []

    def set(self) -> None:
        """Let it have happened."""
        self._is_set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()

    def clear(self) -> None:
        """Let it not have happened."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it has happened, or after so many seconds; tell whether."""
        thread = here()
        thread.process.operate()
        if not self._is_set:
            self._waiters.append(thread)
            thread.park(timeout)
            if thread in self._waiters:
                self._waiters.remove(thread)
        return self._is_set


class SimThreading:
    """Stands in for the module ``threading``."""

    Event = Event
    Thread = SimThread
    Lock = Lock
    RLock = RLock

    @staticmethod
    def get_ident() -> int:
        """Return the number of this thread in its process."""
        return here().ident

    @staticmethod
    def current_thread() -> SimThread:
        """Return the thread that asks."""
        return here()


class SimLowLevel:
    """Stands in for the module ``_thread``."""

    @staticmethod
    def start_new_thread(
        function: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        """Let it run in a thread of its own."""
        SimThread(target=partial(function, *args) if args else function).start()


class SimQueueModule:
    """Stands in for the module ``queue``."""

    SimpleQueue = SimpleQueue
    Empty = queue.Empty
