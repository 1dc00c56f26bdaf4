"""Algorithms as steps: what they need from outside, for threads and for event loops.

An algorithm that asks nodes, sleeps or waits for a release is a generator. It yields
*steps* and gets their results::

    def acquiring(...) -> Steps[Lease]:
        yield Ask(request)              # then its ballot is filled
        yield Sleep(0.01)

A step is data. ``locks.redlock.run`` carries steps out in the calling thread or
greenlet, and ``wire.event_loop`` in a coroutine. When a step is interrupted (a time
limit, a cancellation), the generator is closed: it releases what it may have been
granted, and yields no more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from celery_redlock.wire.pubsub import Waiter
    from celery_redlock.wire.requests import ScriptRequest


T = TypeVar("T")


class Ask(NamedTuple):
    """Send a request, and wait for it as long as nodes may take."""

    request: ScriptRequest


class Sleep(NamedTuple):
    """Let so many seconds pass."""

    seconds: float


class Listen(NamedTuple):
    """Wait until the waiter has news, or for so many seconds."""

    waiter: Waiter
    seconds: float


class Blocking(NamedTuple):
    """Call a function that may block; rare functions are written for threads."""

    function: Callable[[], object]


Step: TypeAlias = Ask | Sleep | Listen | Blocking
Steps: TypeAlias = Generator[Step, Any, T]
