"""The fields of log lines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock import singleton_task
from celery_redlock.core.lease import Holder
from celery_redlock.core.log_fields import log_fields
from celery_redlock.election import Elector

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Capture all log lines of the package."""
    caplog.set_level(logging.INFO, "celery_redlock")


def fields(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    """Return the fields of the only line about this event."""
    (found,) = [
        vars(record)
        for record in caplog.records
        if vars(record).get("redlock_event") == event
    ]
    head = "redlock_"
    return {n.removeprefix(head): v for n, v in found.items() if n.startswith(head)}


def singleton(app: Celery, **options: Any) -> Any:
    """Return a task with an argument that is private."""

    @singleton_task(app=app, shared=False, name="job", key="k", **options)
    def job(_secret: str) -> None: ...

    return job


def test_fields_are_flat_and_begin_alike() -> None:
    """The prefix lets formatters show the fields and prevents name clashes."""
    assert log_fields("node-late", node="a") == {
        "redlock_event": "node-late",
        "redlock_node": "a",
    }


def test_conflict_names_call_decision_and_holder(
    app: Celery, worker: Worker, rival: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    """The line about a republished call has its countdown."""
    rival.acquire("k", holder=Holder.here(task="job", task_id="other-id"))

    run = worker.run(singleton(app, on_conflict="retry", retry_countdown=7), "hush")

    call = {"task": "job", "task_id": run.id, "key": "k"}
    conflict = {"event": "conflict", "decision": "retry", "holder": "other-id"}
    republish = fields(caplog, "republished")
    assert fields(caplog, "conflict") == {**call, **conflict}
    assert 3 < republish.pop("countdown") < 11
    assert republish == {**call, "event": "republished"}
    assert "hush" not in caplog.text


def test_outage_names_call_and_decision(
    app: Celery, worker: Worker, nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """The fields have no nodes; the text names them."""
    nodes.partition(0, 1)

    run = worker.run(singleton(app, on_backend_error="raise"), "hush")

    assert fields(caplog, "outage") == {
        "event": "outage",
        "task": "job",
        "task_id": run.id,
        "key": "k",
        "decision": "raise",
    }


def test_leader_names_election_and_term(
    rival: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines about the begin and the end of a term name the same election."""
    elector = Elector(rival, "beat:unit", ttl=5.0)
    term = elector.campaign()
    elector.resign()

    assert term is not None
    elected, resigned = (
        fields(caplog, "leader-elected"),
        fields(caplog, "leader-resigned"),
    )
    assert elected.pop("term") == term.number
    assert elected.pop("election") == resigned.pop("election") == "beat:unit"
