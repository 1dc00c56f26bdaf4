"""An app's settings, situations for its policies, and clients of fake nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_redlock.core.lease import Holder
from celery_redlock.locking import lock
from celery_redlock.policies import Conflict, Loss, Outage, Retry
from celery_redlock.settings import Settings
from tests.unit.core.support import Stepped

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes

__all__ = ["CONFLICT", "LOSS", "NODES", "OUTAGE", "Site", "delay", "settings"]

NODES = ["redis://a", "redis://b:6380/1", "unix:///run/redis.sock"]
CONFLICT = Conflict(key="k", task="proj.f", task_id="id", holder=Holder("base.attempt"))
LOSS = Loss(key="k", task="proj.f", fence=7, ran=12.5)
OUTAGE = Outage(key="k", task="proj.f", reason="redis-a refused the connection")


@dataclass
class Site:
    """Nodes, their clock, and two processes that lock on them."""

    nodes: FakeNodes
    clock: FakeClock
    redlock: Redlock
    rival: Redlock

    @cached_property
    def watchdog(self) -> Stepped:
        """The watchdog of the first process; it has no thread."""
        return Stepped(self.redlock)

    def lock(self, key: str = "k", **options: Any) -> AbstractContextManager[Lease]:
        """Return a block that the first process locks."""
        return lock(self.redlock, key, watchdog=self.watchdog, **options)

    def renew_for(self, seconds: float) -> None:
        """Do what the watchdog does in this many seconds."""
        self.watchdog.run_for(self.clock, seconds)


def settings(**values: Any) -> Settings:
    """Return the settings of an app with these values, and the nodes."""
    named = {f"redlock_{name}": value for name, value in values.items()}
    return Settings.of({"redlock_nodes": NODES, **named})


def delay(decision: object) -> float:
    """Return the countdown of a republished call, in seconds."""
    assert isinstance(decision, Retry)
    assert isinstance(decision.countdown, float)
    return decision.countdown
