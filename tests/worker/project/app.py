"""The app. A worker reads its settings from the environment.

Tests make several apps with different settings in one process; all of them get
the shared tasks of the modules that are imported here.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from celery import Celery

from tests.worker.project import (  # noqa: F401  (they register)
    followers,
    jobs,
    kinds,
    observers,
    once,
    special,
    turns,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = "PROJECT_SETTINGS"

LOG_FORMAT = "[%(asctime)s %(levelname)s %(processName)s %(name)s] %(message)s"

# Seconds, for the machine that runs the tests is busy. Three of them are less than the
# shortest ttl of a task here. The defaults are 0.05, and 0.5 for a store.
NODE_TIMEOUT = 0.45 if os.environ.get("REDLOCK_TEST_STORE") else 0.25

COMMON = {
    "broker_connection_retry_on_startup": True,
    "redlock_node_timeout": NODE_TIMEOUT,
    "result_chord_join_timeout": 10,
    "worker_log_format": LOG_FORMAT,
    "worker_task_log_format": LOG_FORMAT,
}


def create_app(settings: Mapping[str, Any]) -> Celery:
    """Return a new app with these settings over the common ones."""
    app = Celery("project", set_as_current=False)
    app.conf.update(COMMON)
    app.conf.update(settings)
    kinds.register(app)
    versions.register(app)
    once.register(app)
    return app


app = create_app(json.loads(os.environ.get(SETTINGS, "{}")))
