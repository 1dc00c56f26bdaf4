"""The steps of coroutines: when a transport is asked to send."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from types import FrameType
from typing import Any, cast

from celery_redlock.wire.event_loop import drive
from celery_redlock.wire.requests import Event, ScriptRequest, Transport
from celery_redlock.wire.steps import Ask, Steps

SOON = 5.0  # seconds


class Wire:
    """A transport that notes what it is asked for, and answers when it is woken."""

    def __init__(self) -> None:
        self.asked_for: list[str] = []
        self._events: list[Event] = []

    def begin(self, request: ScriptRequest, event: Event) -> None:
        """Queue a request."""
        del request
        self.asked_for.append("begin")
        self._events.append(event)

    def wake(self) -> None:
        """Answer what is queued."""
        self.asked_for.append("wake")
        while self._events:
            self._events.pop().release()


def asking(times: int) -> Steps[None]:
    """Ask so many times."""
    for _ in range(times):
        yield Ask(cast("Any", None))


def test_requests_of_one_turn_of_the_loop_leave_together() -> None:
    """A transport is woken once for all coroutines that ask in one turn."""
    wire = Wire()

    async def ask() -> None:
        transport = cast("Transport", wire)
        await asyncio.gather(*[drive(asking(2), transport) for _ in range(3)])

    asyncio.run(ask())

    assert wire.asked_for == 2 * [*3 * ["begin"], "wake"]


def test_each_transport_of_one_turn_is_woken() -> None:
    """Coroutines that ask other nodes in the same turn do not wait for each other."""
    wires = [Wire(), Wire()]

    async def ask() -> None:
        transports = cast("list[Transport]", wires)
        await asyncio.gather(*[drive(asking(1), each) for each in transports])

    asyncio.run(ask())

    assert [wire.asked_for for wire in wires] == 2 * [["begin", "wake"]]


class Interrupted(Exception):  # noqa: N818  (as Celery's SoftTimeLimitExceeded)
    """The exception of a time limit."""


class InterruptedWire(Wire):
    """A transport whose driver is interrupted once, and then does the same again."""

    def wake(self) -> None:
        """Answer what is queued."""
        for event in self._events:
            with contextlib.suppress(Interrupted):
                event.release()
        super().wake()


class InterruptedLoop(asyncio.SelectorEventLoop):
    """A loop of which another thread is interrupted while it tells the first news."""

    was_interrupted = False

    def call_soon_threadsafe(  # type: ignore[override]
        self, *args: Any, **options: Any
    ) -> asyncio.Handle:
        """Raise once."""
        if not self.was_interrupted:
            self.was_interrupted = True
            raise Interrupted
        return super().call_soon_threadsafe(*args, **options)


def test_driver_that_is_interrupted_tells_a_coroutine_again() -> None:
    """It may be the main thread, in which time limits raise."""
    transport = cast("Transport", InterruptedWire())
    loop = InterruptedLoop()

    try:
        waiting = asyncio.wait_for(drive(asking(2), transport), SOON)
        loop.run_until_complete(waiting)
    finally:
        loop.close()

    assert loop.was_interrupted


def test_coroutines_go_on_after_an_interruption_of_the_loop() -> None:
    """The loop only logs the exception of a time limit that comes in a callback."""
    transport = cast("Transport", Wire())
    errors: list[Any] = []

    def interrupt(frame: FrameType, what: str, arg: object) -> None:
        del what, arg
        if frame.f_code.co_name == "resolve":
            raise Interrupted

    async def ask_twice() -> None:
        loop = asyncio.get_running_loop()
        logged = asyncio.Event()

        def note(_: object, context: dict[str, Any]) -> None:
            errors.append(context["exception"])
            logged.set()

        loop.set_exception_handler(note)
        before = sys.gettrace()
        sys.settrace(interrupt)  # until it raises
        first = asyncio.ensure_future(drive(asking(1), transport))
        await asyncio.wait_for(logged.wait(), SOON)
        sys.settrace(before)
        await asyncio.wait_for(drive(asking(1), transport), SOON)
        await asyncio.wait_for(first, SOON)

    asyncio.run(ask_twice())

    assert [type(error) for error in errors] == [Interrupted]
