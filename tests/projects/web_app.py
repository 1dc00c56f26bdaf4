"""A WSGI application that takes locks, before uWSGI forks and after."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from celery_redlock import LockHeld, Redlock, lock
from tests.projects.app import SERVERS, note

NODES = json.loads(os.environ[SERVERS])["conf"]["redlock_nodes"]
service = Redlock(NODES, node_timeout=1.0)  # a busy machine
with lock(service, "warm"):  # the nodes are asked before the fork
    pass


def application(
    environ: dict[str, Any], start_response: Callable[..., Any]
) -> list[bytes]:
    """Run once at a time for a path, and say whether it ran."""
    key = environ["PATH_INFO"]
    answer = b"held"
    try:
        with lock(service, key) as lease:
            note(key, step="began")
            lease.ensure()
            note(key, step="ended")
            answer = b"ran"
    except LockHeld:
        pass
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer]
