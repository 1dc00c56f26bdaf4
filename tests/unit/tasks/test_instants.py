"""Instants without a zone are read as Celery's worker reads them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.utils.time import timezone as zones
from celery.worker.request import Request
from kombu.asynchronous.timer import to_timestamp

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.task.publishing import seconds_until
from tests.unit.tasks.support import Worker, message_of


def received(task: Any, when: datetime, *, utc: bool) -> tuple[float, float]:
    """Return when a worker starts such a message, and when it expires."""
    app = task.app
    sent = app.amqp.as_task_v2("id", "job", eta=when, expires=when)
    request = Request(message_of(sent), app=app, task=task, utc=utc)
    clock: Any = SYSTEM_CLOCK.wall
    eta: Any = zones.to_system(request.eta) if utc else request.eta
    starts = to_timestamp(eta, app.timezone, clock)  # type: ignore[no-untyped-call]
    return starts, request._expires.timestamp()  # noqa: SLF001


@pytest.mark.parametrize("utc", [True, False], ids=["utc", "local"])
@pytest.mark.parametrize("name", ["America/New_York", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("is_local", [True, False], ids=["of the zone", "of UTC"])
def test_instant_without_a_zone_is_the_one_of_the_worker(
    worker: Worker, name: str, *, utc: bool, is_local: bool
) -> None:
    """Celery reads it as UTC, also with ``enable_utc=False``."""
    worker.app.conf.update(timezone=name, enable_utc=utc)
    zone = ZoneInfo(name) if is_local else timezone.utc
    when = datetime.now(zone).replace(tzinfo=None) + timedelta(hours=12)

    task = worker.leased_job()
    before = SYSTEM_CLOCK.wall()
    ours = seconds_until(task, when)
    after = SYSTEM_CLOCK.wall()
    assert ours is not None
    asked = SYSTEM_CLOCK.wall()
    found = received(task, when, utc=utc)
    # kombu reads two clocks one after the other, and adds what is between them.
    pause = SYSTEM_CLOCK.wall() - asked
    for theirs in found:
        assert before - 0.001 <= theirs - ours <= after + pause + 0.001
