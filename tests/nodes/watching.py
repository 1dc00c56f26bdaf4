"""What tests of renewal share: a watchdog, what it said, and nodes that stutter."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, Any

from celery_redlock.core.renewal import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNode

__all__ = ["BRIEF", "Diary", "stutter", "watchdog"]

BRIEF: dict[str, Any] = {"ttl": 0.9, "node_timeout": 0.1}  # renewed every 0.3 s


@contextlib.contextmanager
def watchdog(redlock: Redlock) -> Iterator[Watchdog]:
    """Give a watchdog that is stopped afterwards."""
    dog = Watchdog(redlock)
    try:
        yield dog
    finally:
        dog.stop()


class Diary:
    """What the watchdog said about leases."""

    def __init__(self, redlock: Redlock) -> None:
        self.renewals: list[str] = []
        self.losses: list[tuple[Lease, float]] = []
        self._clock = redlock.clock

    def note_renewal(self, lease: Lease, lateness: float) -> None:
        """Be called after a renewal."""
        assert lateness >= 0
        self.renewals.append(lease.key)

    def note_loss(self, lease: Lease) -> None:
        """Be called when a lease is lost."""
        self.losses.append((lease, self._clock.monotonic()))

    @property
    def ears(self) -> dict[str, Any]:
        """What to give to `watch`."""
        return {"on_renewed": self.note_renewal, "on_lost": self.note_loss}


@contextlib.contextmanager
def stutter(nodes: list[DevNode], *, longest: float, seed: int) -> Iterator[None]:
    """Stop each of these nodes again and again for a moment, in a thread."""
    chance = random.Random(seed)  # noqa: S311  (no secret)
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            node = chance.choice(nodes)
            node.pause()
            over.wait(chance.uniform(0, longest))
            node.resume()
            over.wait(chance.uniform(0, longest))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
