"""The tasks of the demo, and the app that its workers run."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_redlock import current_lease, singleton_task
from celery_redlock.demo.journal import record
from celery_redlock.signals import lock_conflict, lock_renewed

if TYPE_CHECKING:
    from celery_redlock.policies import Conflict

__all__ = ["SETTINGS", "app", "import_catalogue", "send_invoice"]

SETTINGS = "CELERY_REDLOCK_DEMO_SETTINGS"

app = Celery("demo", set_as_current=False)
app.conf.update(json.loads(os.environ.get(SETTINGS, "{}")))


@singleton_task(app=app, name="send_invoice", key="invoice:{number}", ttl=3)
def send_invoice(number: str, seconds: float) -> str:
    """Pretend to send an invoice. Its lock is short and renewed meanwhile."""
    return _work(f"invoice:{number}", seconds)


@singleton_task(app=app, name="import_catalogue", key="catalogue")
def import_catalogue(seconds: float) -> str:
    """Pretend to import the catalogue. Its ttl is the default of 30 seconds."""
    return _work("catalogue", seconds)


def _work(key: str, seconds: float) -> str:
    lease = current_lease()
    record("began", key=key, fence=lease.fence if lease else None)
    time.sleep(seconds)
    record("ended", key=key)
    return key


@lock_renewed.connect(weak=False)
def _note_renewal(lease: Any, **_: Any) -> None:
    record("renewed", key=lease.key)


@lock_conflict.connect(weak=False)
def _note_conflict(conflict: Conflict, **_: Any) -> None:
    record("skipped", key=conflict.key, holder=str(conflict.holder))
