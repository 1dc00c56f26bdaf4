"""One task as several versions of a project have it."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_redlock import singleton_task
from tests.worker.project.body import hold

CLAIMED: dict[str, Any] = {"unique_while": "queued_or_running"}


def first(key: str) -> str:
    """Run until the gate opens."""
    return hold(key)


def more(key: str, force: bool = False, *, depth: int = 3) -> str:  # noqa: FBT002  (users do this)
    """Run until the gate opens, with two arguments more."""
    return hold(key)


VERSIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "first": (first, CLAIMED),
    "one argument more": (more, CLAIMED),
    "another key": (first, {**CLAIMED, "key": "evolved:{key}"}),
    "unclaimed": (first, {}),
}


def register(app: Celery) -> None:
    """Define the task as it is in the version that the app's settings name."""
    version = app.conf.get("project_version", "first")
    body, options = VERSIONS[version]
    singleton_task(app=app, name="evolving", shared=False, **options)(body)
