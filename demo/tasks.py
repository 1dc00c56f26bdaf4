"""The app and the two tasks of the demo."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.signals import lock_conflict, lock_renewed
from demo.journal import record

if TYPE_CHECKING:
    from celery_redlock import Conflict, Lease

SETTINGS = "DEMO_SETTINGS"

app = Celery("demo", set_as_current=False)
app.conf.update(json.loads(os.environ.get(SETTINGS, "{}")))


@singleton_task(app=app, name="send_invoice", key="invoice:{number}", ttl=3)
def send_invoice(number: str, seconds: float) -> str:
    """Pretend to send an invoice. The lock has a short ttl, so it is renewed often."""
    return _work(f"invoice:{number}", seconds)


@singleton_task(app=app, name="import_catalogue", key="catalogue")
def import_catalogue(seconds: float) -> str:
    """Pretend to import the catalogue. The lock has the default ttl of 30 seconds."""
    return _work("catalogue", seconds)


def _work(key: str, seconds: float) -> str:
    record("began", key=key)
    time.sleep(seconds)
    record("ended", key=key)
    return key


@lock_renewed.connect(weak=False)
def _record_renewal(lease: Lease, **_: Any) -> None:
    record("renewed", key=lease.key)


@lock_conflict.connect(weak=False)
def _record_conflict(conflict: Conflict, **_: Any) -> None:
    record("skipped", key=conflict.key, holder=str(conflict.holder))
