"""Carry out steps in a coroutine: no thread for each, and no blocked event loop.

Another thread sends and reads, mostly the I/O thread of the broadcast. It is woken once
for all requests of one turn of the loop, so that they leave together. It tells the loop
which calls are over. All that are over at the same moment are told at once.

A cancelled coroutine closes its steps, which hand their release to the transport. It
needs no further turn of the loop, so nothing stays locked. The same happens when the
collector finds a coroutine whose loop was closed in the middle: nothing here keeps a
closed loop alive, or what waits in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from celery_redlock.errors import ConfigurationError
from celery_redlock.wire.steps import Ask, Blocking, Sleep

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.wire.requests import Transport
    from celery_redlock.wire.steps import Step, Steps


T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs here.

    Raises:
        ConfigurationError: It is not one of asyncio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "No event loop of asyncio runs here, and locks of coroutines need one. "
            "Nothing was locked. In trio, enter a block of lock() in a thread: "
            "await trio.to_thread.run_sync(block.__enter__), and leave it so, too."
        ) from None


async def drive(
    steps: Steps[T], transport: Transport, loop: asyncio.AbstractEventLoop | None = None
) -> T:
    """Carry the steps out in this coroutine, and return the result.

    Args:
        steps: The steps.
        transport: Sends the requests.
        loop: The loop that runs here, if the caller has it at hand.
    """
    loop = loop or running_loop()
    result: Any = None
    try:
        while True:
            result = await _take(steps.send(result), transport, loop)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def drive_release(
    steps: Steps[T],
    transport: Transport,
    loop: Callable[[], asyncio.AbstractEventLoop | None] | None = None,
) -> T | None:
    """Carry out the steps of a release, as `drive` does.

    The collector ends a coroutine of a loop that was closed, where no loop runs, or
    another one. Then the requests are handed over, and no reply is waited for.

    Args:
        steps: The steps.
        transport: Sends the requests.
        loop: Returns the loop in which the lock was acquired, while it can await; None:
            in the one that runs.
    """
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is None or (loop is not None and loop() is not here):
        for step in steps:
            if isinstance(step, Ask):
                transport.send(step.request)
        return None
    return await drive(steps, transport, here)


async def _take(
    step: Step, transport: Transport, loop: asyncio.AbstractEventLoop
) -> Any:
    """Carry out one step, and return its result.

    This coroutine ends before `drive` closes the steps, and drops the future, which
    refers to the caller's task. In one coroutine with `drive`, the collector sometimes
    closed the caller while it closed `drive`: "coroutine already executing".
    """
    if isinstance(step, Sleep):
        await asyncio.sleep(step.seconds)
        return None
    if isinstance(step, Blocking):
        thread = ThreadPoolExecutor(1)  # those of the loop may all be in use for long
        try:
            return await loop.run_in_executor(thread, step.function)
        finally:
            thread.shutdown(wait=False)
    future: asyncio.Future[None] = loop.create_future()
    event = _FutureEvent(future)
    if isinstance(step, Ask):
        transport.begin(step.request, event)
        event.wake_soon(transport)
        await future
    else:
        step.waiter.notify(event)
        await asyncio.wait((future,), timeout=step.seconds)
        step.waiter.notify(None)
    return None


class _Soon:
    """The next turn of one loop: what is done then for all of its coroutines.

    Attributes:
        futures: Those that another thread has ended.
        is_scheduled: Whether `resolve` is to be called.
        transports: Those that got requests in this turn.
    """

    def __init__(self) -> None:
        self.futures: deque[asyncio.Future[None]] = deque()
        self.is_scheduled = False
        self.transports: set[Transport] = set()

    def wake(self) -> None:
        """Have the transports send what they got in this turn."""
        transports, self.transports = self.transports, set()
        for transport in transports:
            transport.wake()
        self.resolve()  # a time limit may have interrupted the last one at its start

    def resolve(self) -> None:
        """Let the coroutines that wait for them continue; in their loop."""
        self.is_scheduled = False
        while self.futures:
            future = self.futures.popleft()
            if not future.done():
                future.set_result(None)


# Of each loop with coroutines that wait. They and the loop keep the entry, and nothing
# else does, because it leads to the loop.
_soon: WeakValueDictionary[asyncio.AbstractEventLoop, _Soon] = WeakValueDictionary()


class _FutureEvent:
    """Ends a future of a loop, from any thread."""

    __slots__ = ("_future", "_loop", "_soon")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future
        self._loop = future.get_loop()
        soon = _soon.get(self._loop)
        if soon is None:
            soon = _soon[self._loop] = _Soon()
        self._soon = soon

    def wake_soon(self, transport: Transport) -> None:
        """Have the transport send when the other coroutines have had their turn.

        For the thread of the loop. If the loop has no further turn, the transport sends
        by itself, a little later.
        """
        soon = self._soon
        if not soon.transports:
            self._loop.call_soon(soon.wake)
        soon.transports.add(transport)

    def release(self) -> None:
        """End the future soon."""
        soon = self._soon
        soon.futures.append(self._future)
        if not soon.is_scheduled:
            try:
                soon.is_scheduled = True
                self._loop.call_soon_threadsafe(soon.resolve)
            except RuntimeError:  # the loop is closed
                soon.futures.clear()
            except BaseException:  # an interruption: the next call schedules it
                soon.is_scheduled = False
                raise
