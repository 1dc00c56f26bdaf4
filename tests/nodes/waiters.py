"""What tests of waiting share: threads that wait for a lock, in line and by name."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redlock.core.clock import SYSTEM_CLOCK
from tests.nodes.support import client, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNode, DevNodes

__all__ = [
    "LONG",
    "Waiter",
    "connected",
    "in_line",
    "is_past",
    "release_in_turn",
    "until_in_line",
    "waiters",
]

LONG = 60.0  # seconds: whoever waited so long has failed


def in_line(node: DevNode, key: str) -> list[str]:
    """Return who waits, as this node knows it."""
    return list(node.command("ZRANGE", f"redlock:line:{key}", 0, -1))


def until_in_line(nodes: DevNodes, key: str, count: int) -> None:
    """Wait until every node knows so many waiters."""
    until(lambda: all(len(in_line(node, key)) == count for node in nodes.nodes))


def is_past(instant: float) -> bool:
    """Tell whether it is later than that."""
    return SYSTEM_CLOCK.monotonic() > instant


@contextmanager
def connected(nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service that is connected to all nodes."""
    with client(nodes, node_timeout=1.0) as redlock:
        until(lambda: redlock.inspect("any").ballot.answered == len(nodes.nodes))
        yield redlock


@dataclass
class Waiter:
    """A thread that waits for a lock with connections of its own."""

    redlock: Redlock
    key: str
    leases: list[Lease] = field(default_factory=list)

    def start(self) -> None:
        """Begin to wait."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.leases.append(self.redlock.acquire(self.key, wait=LONG))

    def has_it(self) -> bool:
        """Tell whether it got the lock."""
        return bool(self.leases)

    def hears(self) -> bool:
        """Tell whether it would be woken."""
        ears = self.redlock.ears
        return bool(ears and ears.listening == len(self.redlock.labels))


@contextmanager
def waiters(
    nodes: DevNodes, key: str, count: int, *, ahead: int = 0
) -> Iterator[list[Waiter]]:
    """Give so many waiters, who came in this order and are all in line."""
    with ExitStack() as stack:
        made: list[Waiter] = []
        for number in range(count):
            redlock = stack.enter_context(connected(nodes))
            made.append(Waiter(redlock, key))
            made[-1].start()
            until(made[-1].hears)
            until_in_line(nodes, key, ahead + number + 1)
        yield made
        for waiter in made:
            waiter.thread.join(LONG)


def release_in_turn(made: Sequence[Waiter]) -> None:
    """Let each who gets the lock release it, until all have had it."""
    todo = list(made)
    while todo:
        # On a busy machine a late answer may cost the first its turn.
        taker = until(lambda: [waiter for waiter in todo if waiter.has_it()], LONG)[0]
        todo.remove(taker)
        taker.redlock.release(taker.leases[0])
