"""The app. A worker reads its settings from the environment.

Tests make several apps with different settings in one process; all of them get
the shared tasks of the modules that are imported here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery
from kombu.transport.redis import Channel, QoS, Transport

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


if not hasattr(Channel, "unacked_restore_interval"):  # before kombu 5.7
    # No option says how often a worker looks for calls that were not acknowledged: each
    # 100 s. Tests ask for each second, see `redelivery`.
    QoS.restore_visible.__defaults__ = (0, 10, 1)
    _register: Any = Transport.register_with_event_loop

    def _look_each_second(self: Any, connection: Any, loop: Any) -> None:
        _register(self, connection, loop)
        loop.call_repeatedly(1, self.cycle.maybe_restore_messages)

    Transport.register_with_event_loop = _look_each_second  # type: ignore[method-assign]


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
