"""An app on the servers of the tests, and notes: the common part of the projects."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery

from tests.harness.journal import Journal

SERVERS = "PROJECT_SERVERS"


def new_app(name: str, **settings: Any) -> Celery:
    """Return a new app; the environment names its broker, backend and lock nodes."""
    app = Celery(name, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        redlock_node_timeout=1.0,  # a busy machine
        **settings,
    )
    app.conf.update(json.loads(os.environ[SERVERS])["conf"])
    return app


def note(what: str, **facts: Any) -> None:
    """Append a line about something that happened."""
    _journal().note(what, **facts)


def notes(what: str) -> list[dict[str, Any]]:
    """Return the lines about this, in their order."""
    return [one for one in _journal().events() if one["event"] == what]


def _journal() -> Journal:
    return Journal(Path(json.loads(os.environ[SERVERS])["notes"]))
