"""The app whose real runs `duplicates.py` draws: each task, and what it writes down."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery, signals

from celery_redlock import LockCancelled, singleton_task

RECORD, SETTINGS = "DUPLICATES_RECORD", "DUPLICATES_SETTINGS"

app = Celery("acts")
app.conf.update(json.loads(os.environ.get(SETTINGS, "{}")))


def note(job: str, what: str, **facts: Any) -> None:
    """Append a line to the record, with the time."""
    line = json.dumps({"job": job, "what": what, "at": time.time(), **facts})
    handle = os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def _note_slot(task_id: str = "", **_: Any) -> None:
    note(task_id, "slot")


def _note_end_of_slot(task_id: str = "", **_: Any) -> None:
    note(task_id, "left")


signals.task_prerun.connect(_note_slot)
signals.task_postrun.connect(_note_end_of_slot)


def _task(name: str, **options: Any) -> Any:
    def act(self: Any, seconds: float) -> None:
        note(self.request.id, "began")
        outcome = "done"
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.01)
        except LockCancelled:
            outcome = "cancelled"
            raise
        finally:
            note(self.request.id, "ended", outcome=outcome)

    return singleton_task(app=app, name=name, bind=True, key=name, **options)(act)


OPTIONS: dict[str, dict[str, Any]] = {
    "skip": {"on_conflict": "skip"},
    "raise": {"on_conflict": "raise"},
    "retry": {"on_conflict": "retry", "retry_countdown": 0.6},
    "wait": {"on_conflict": "wait"},
    "allow": {"on_conflict": "allow"},
    "buffer_one": {"on_conflict": "buffer_one", "retry_countdown": 0.3},
    "cancel_running": {"on_conflict": "cancel_running"},
    "queued": {
        "unique_while": "queued",
        "on_conflict": "retry",
        "retry_countdown": 0.3,
    },
    "queued_or_running": {"unique_while": "queued_or_running"},
    "unique_for": {"unique_for": 1.5},
    "hold_at_least": {"hold_at_least": 1.0},
}
TASKS = {name: _task(name, **options) for name, options in OPTIONS.items()}
