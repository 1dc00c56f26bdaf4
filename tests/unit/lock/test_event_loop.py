"""The steps of coroutines: when a transport is asked to send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from celery_redlock.wire.event_loop import drive
from celery_redlock.wire.steps import Ask

if TYPE_CHECKING:
    from celery_redlock.wire.requests import Event, ScriptRequest, Transport
    from celery_redlock.wire.steps import Steps


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
