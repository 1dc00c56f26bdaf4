"""An app's settings, and situations for its policies."""

from __future__ import annotations

from typing import Any

from celery_redlock.locks.lease import Holder
from celery_redlock.policies import Conflict, Loss, Outage, Retry
from celery_redlock.settings import Settings

NODES = ["redis://a", "redis://b:6380/1", "unix:///run/redis.sock"]
CONFLICT = Conflict(key="k", task="proj.f", task_id="id", holder=Holder("base.attempt"))
LOSS = Loss(key="k", task="proj.f", fence=7, ran=12.5)
OUTAGE = Outage(key="k", task="proj.f", reason="redis-a refused the connection")


def settings(**values: Any) -> Settings:
    """Return the settings of an app with these values, and the nodes."""
    named = {f"redlock_{name}": value for name, value in values.items()}
    return Settings.of({"redlock_nodes": NODES, **named})


def delay(decision: object) -> float:
    """Return the countdown of a republished call, in seconds."""
    assert isinstance(decision, Retry)
    assert isinstance(decision.countdown, float)
    return decision.countdown
