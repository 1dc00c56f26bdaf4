"""One node on sockets that do what a test says, and what it said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery_redlock.core.node import Node
from celery_redlock.core.scripts import RELEASE
from tests.unit.core.wires import Address, Connection, Selector, arrive, question

if TYPE_CHECKING:
    from celery_redlock.core.question import Question
    from celery_redlock.testing import FakeClock


CONNECT_TIMEOUT = 1.0  # seconds


class Stage:
    """A node, its next connections, and the one that it has."""

    def __init__(self, clock: FakeClock, *coming: Connection | Exception) -> None:
        self.clock = clock
        self.address = Address(*coming)
        self.selector = Selector()
        self.node = Node(
            cast("Any", self.address), clock=clock, connect_timeout=CONNECT_TIMEOUT
        )

    def tend(self) -> bool:
        """Take a new connection or start one; tell whether one was taken."""
        return self.node.tend(cast("Any", self.selector))

    def arrive(self) -> None:
        """Let a connection be tried, and take what comes of it."""
        arrive(self.node, self.selector)

    def ask(self, *questions: Question) -> None:
        """Send these questions together."""
        self.node.send(questions, 0)


def said(asked: Question) -> Any:
    """Return what the node said: its reply, or why there is none; None while out."""
    vote = asked.ballot.votes[0]
    if asked.replies[0] is None and vote is not None:
        return vote.reason
    return asked.replies[0]


def release(clock: FakeClock, **options: Any) -> Question:
    """Return a release that insists."""
    until = clock.monotonic() + 60.0
    return question(script=RELEASE, insist_until=until, **options)
