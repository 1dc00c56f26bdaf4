"""Projects that report errors, or that an agent watches."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock import DuplicateTask
from tests.projects.app import note, notes
from tests.projects.conftest import Project


@pytest.mark.long
def test_lost_lock_is_one_event_of_sentry_and_a_duplicate_none(
    start: Callable[..., Project],
) -> None:
    """A loss was an event of the log, and one more of the failed task."""
    pytest.importorskip("sentry_sdk", reason="pip install sentry-sdk")
    project = start("observed", pool="solo")

    def publish(name: str, *args: Any) -> None:
        task_id = project.view.delay(name, *args).get(timeout=60)
        project.app.AsyncResult(task_id).get(timeout=60, propagate=False)

    with project.refused.lock():
        publish("refused")
    publish("losing", 1)
    publish("fails")

    project.until_noted("event", 2)
    assert [one["error"] for one in notes("event")] == ["LockLost", "ZeroDivisionError"]


@pytest.mark.long
def test_check_in_of_sentry_is_closed_by_a_run_alone(
    start: Callable[..., Project],
) -> None:
    """Sentry opens it in beat, and knows success, failure and retry as its end."""
    pytest.importorskip("sentry_sdk", reason="pip install sentry-sdk")
    project = start("observed", pool="solo")

    with project.refused.lock(), project.queued.lock():
        for name in ("refused", "queued", "runs"):
            project.beat.delay(name).get(timeout=60)
        project.until_noted("check-in", 4)
    with project.behind.lock():
        project.beat.delay("behind").get(timeout=60)
        project.until_noted("check-in", 6)
    project.until_noted("check-in", 7)

    seen: dict[str, list[str]] = {}
    for one in notes("check-in"):
        seen.setdefault(one["entry"], []).append(one["status"])
    assert seen == {
        "refused": ["in_progress"],
        "queued": ["in_progress"],
        "runs": ["in_progress", "ok"],
        "behind": ["in_progress", "error", "ok"],
    }


@pytest.mark.long
@pytest.mark.parametrize("agent", ["ddtrace", "newrelic"])
def test_agent_changes_nothing_about_locks(
    start: Callable[..., Project], monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """A call runs once, its duplicate is skipped, and a retry is no duplicate."""
    if importlib.util.find_spec(agent) is None:
        pytest.skip(f"{agent} is not installed: pip install {agent}")
    monkeypatch.setenv("PROJECT_AGENT", agent)
    project = start("traced")
    account, other = f"{agent}-acme", f"{agent}-retried"

    def publish(*args: Any, **kwargs: Any) -> Any:
        task_id = project.view.delay(*args, **kwargs).get(timeout=60)
        return project.app.AsyncResult(task_id)

    first = publish(account)
    project.until_noted("sync")
    second = publish(account)
    duplicate = second.get(timeout=60, propagate=False)
    assert isinstance(duplicate, DuplicateTask)
    note("seen")

    assert first.get(timeout=60) == account
    assert publish(other, again=True).get(timeout=60) == other
    assert [one["account"] for one in notes("sync")] == [account, other, other]
