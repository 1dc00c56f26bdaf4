"""A project that an agent watches: Datadog or New Relic, as the environment says."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

AGENT = "PROJECT_AGENT"


def _import(name: str) -> Any:
    return importlib.import_module(name)


if "worker" not in sys.argv:  # they change Celery for all tests of a process
    pass
elif os.environ[AGENT] == "ddtrace":
    _import("ddtrace").patch(celery=True)
else:
    _import("newrelic.agent").initialize()

from celery_redlock import singleton_task  # noqa: E402
from tests.harness.waiting import until  # noqa: E402
from tests.projects.app import new_app, note, notes  # noqa: E402

app = new_app("traced", task_acks_late=True)


@app.task(name="view")
def view(*args: Any, **kwargs: Any) -> str:
    """Publish a call in a process that the agent watches, and return its id."""
    return str(sync.delay(*args, **kwargs).id)


@singleton_task(app=app, name="sync", key="sync:{account}", bind=True)
def sync(self: Any, account: str, *, again: bool = False) -> str:
    """Work for an account, until the test has seen a duplicate."""
    note("sync", account=account)
    if again and not self.request.retries:
        raise self.retry(countdown=0)
    until(lambda: notes("seen") or again)
    return account
