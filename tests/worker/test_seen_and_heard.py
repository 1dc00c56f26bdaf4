"""Every duplicate can be observed, under each policy, and none looks like a success.

There is a log line, a signal, an event for monitors and, where it is kept, a result.
Each names the holder, the policy and the key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import celery
import pytest
from celery import states
from celery.bin.base import CLIContext
from celery.events.state import State
from celery.result import AsyncResult
from click.testing import CliRunner

from celery_redlock import DuplicateTask
from celery_redlock.app.runtime import runtime_of
from celery_redlock.cli import redlock
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations import doctor
from celery_redlock.operations.doctor import Workers
from celery_redlock.operations.doctor.workers import nodes as nodes_of_workers
from tests.conftest import with_long
from tests.harness.deployment import Deployment, Site
from tests.harness.lock_nodes import LockNodes
from tests.harness.waiting import until


@dataclass
class Monitor:
    """A monitor of workers, like Flower and ``celery events``."""

    connection: Any = None
    state: State = field(default_factory=State)  # Celery's summary of the events
    events: list[dict[str, Any]] = field(default_factory=list)

    def see(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        self.events.append(event)
        self.state.event(event)

    def look(self) -> None:
        """Take in the events that have arrived, or that arrive in a moment."""
        with contextlib.suppress(TimeoutError):
            self.connection.drain_events(timeout=0.2)

    def until(self, task_id: str, *types: str) -> dict[str, dict[str, Any]]:
        """Wait for events of these types about a task, and return them."""

        def all_of_them() -> dict[str, dict[str, Any]] | None:
            self.look()
            told = {e["type"]: e for e in self.events if e.get("uuid") == task_id}
            return told if told.keys() >= set(types) else None

        return until(all_of_them, 15, what=f"{types} of {task_id}") or {}

    def state_of(self, task_id: str) -> str:
        """Return the state in which a monitor shows a task."""
        return str(self.state.tasks[task_id].state)


@pytest.fixture(scope="module", params=with_long(["prefork", "threads"], "threads"))
def here(
    request: pytest.FixtureRequest, site: Site, nodes: LockNodes
) -> Iterator[Deployment]:
    """Give a worker of each pool that sends events."""
    if request.param == "threads" and celery.VERSION < (5, 7):
        pytest.skip("Celery loses an event that a thread adds while others are sent")
    with site.deploy(nodes, pool=request.param, options=["--task-events"]) as it:
        yield it


@contextlib.contextmanager
def looking_on(here: Deployment) -> Iterator[Monitor]:
    """Give a monitor that receives the workers' events while the block runs."""
    monitor = Monitor()
    with here.app.connection_for_read() as connection:
        receiver = here.app.events.Receiver(connection, handlers={"*": monitor.see})
        with receiver.consumer_context() as (monitor.connection, _, _):
            monitor.look()  # it subscribes only now
            yield monitor


@pytest.fixture
def monitor(here: Deployment) -> Iterator[Monitor]:
    """Give a monitor of the workers."""
    with looking_on(here) as monitor:
        yield monitor


def names_all(text: str, key: str, holder_id: str, policy: str) -> bool:
    """Tell whether a text names the key, the holder and the policy."""
    return all(word in text for word in (repr(key), holder_id, policy))


@dataclass(frozen=True)
class Case:
    """The visible effects of one policy on a duplicate."""

    task: str
    policy: str
    decision: str  # as the signal names it
    events: tuple[str, ...]  # their types
    shown: str  # its state in monitors
    state: str  # of its result meanwhile


OURS, RETRIED = "task-conflict", "task-retried"
REPUBLISHED = (OURS, RETRIED), "RETRY", states.RETRY
CASES = [
    Case("job", "skip", "Skip", ("task-revoked",), "REVOKED", states.REVOKED),
    Case("job-raise", "raise", "Raise", ("task-failed",), "FAILURE", states.FAILURE),
    Case("job-retry", "retry", "Retry", *REPUBLISHED),
    Case("job-wait", "wait", "Wait", (OURS,), "CONFLICT", states.PENDING),
    Case("job-allow", "allow", "Run", (OURS,), "STARTED", states.PENDING),
    Case("buffered", "buffer_one", "BufferOne", *REPUBLISHED),
    Case("replacing-deaf", "cancel_running", "CancelRunning", *REPUBLISHED),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.policy)
def test_duplicate_is_seen_and_heard(
    here: Deployment, monitor: Monitor, key: str, case: Case
) -> None:
    """Log, signal, event and result agree, and none of them says success."""
    first = here.begin(case.task, key)

    second = here.send(case.task, key)
    told = monitor.until(second.id, *case.events)

    for event in told.values():
        if event["type"] in ("task-revoked", OURS):
            assert (event["key"], event["policy"]) == (key, case.policy)
            assert first.id in event["holder"]
        elif event["type"] in (RETRIED, "task-failed"):
            assert names_all(event["exception"], key, first.id, case.policy)
    assert "task-succeeded" not in told
    # A republished call may have been received again by now.
    shown = {case.shown, *({"RECEIVED", "STARTED"} if RETRIED in told else ())}
    assert monitor.state_of(second.id) in {*shown, "CONFLICT"}
    signals = here.stage.notes(key, "signal-conflict")
    assert (signals[0]["task_id"], signals[0]["decision"]) == (second.id, case.decision)
    assert len(signals) == 1 or case.state == states.RETRY
    assert any(
        names_all(line, key, first.id, "on_conflict") and second.id in line
        for line in here.logs_of_the_package().splitlines()
    )
    until(lambda: second.state == case.state)
    if case.state != states.PENDING:
        assert isinstance(second.result, DuplicateTask)
        assert names_all(str(second.result), key, first.id, case.policy)
    for gate in (key, f"{key}-0"):
        here.stage.open(gate)
    _end(first, second)


def test_monitors_show_that_a_call_runs_which_has_waited(
    here: Deployment, monitor: Monitor, key: str
) -> None:
    """The state CONFLICT ends with the wait, and not with the run."""
    first = here.begin("job-wait", key)
    second = here.send("job-wait", key)
    monitor.until(second.id, OURS)

    here.finish(key, first, second)
    monitor.until(second.id, "task-succeeded")

    told = [e["type"] for e in monitor.events if e.get("uuid") == second.id]
    waited = told[told.index(OURS) :]
    assert waited.index("task-started") < waited.index("task-succeeded")


@pytest.mark.long
def test_superseded_call_says_so(here: Deployment, monitor: Monitor, key: str) -> None:
    """Of the waiting calls all but one end as REVOKED, also in monitors."""
    first = here.begin("buffered", key)
    second = here.send("buffered", key)
    until(lambda: second.state == states.RETRY)
    third = here.send("buffered", key)

    event = monitor.until(second.id, "task-revoked")["task-revoked"]

    assert event["superseded_by"] == third.id
    assert (event["key"], event["policy"]) == (key, "buffer_one")
    until(second.ready)
    assert second.state == states.REVOKED
    assert names_all(str(second.result), key, third.id, "buffer_one")
    assert f"{third.id} runs instead" in here.logs_of_the_package()
    here.stage.open(key)
    _end(first, third)


def test_cancelled_call_says_so(here: Deployment, monitor: Monitor, key: str) -> None:
    """A cancelled call is no failure and no success: it is REVOKED."""
    first = here.begin("replacing", key)

    second = here.send("replacing", key)
    event = monitor.until(first.id, "task-revoked")["task-revoked"]

    assert second.id in event["cancelled_by"]
    assert (event["key"], event["policy"]) == (key, "cancel_running")
    assert monitor.state_of(first.id) == "REVOKED"
    until(first.ready)
    assert first.state == states.REVOKED
    assert names_all(str(first.result), key, second.id, "cancel_running")
    (signal,) = until(lambda: here.stage.notes(key, "signal-cancelled"))
    assert signal["task_id"] == first.id
    assert second.id in signal["cancelled_by"]
    here.stage.open(key)
    _end(second)


def test_worker_without_events_sends_none(prefork: Deployment, key: str) -> None:
    """A worker whose events are not enabled sends none about tasks."""
    with looking_on(prefork) as monitor:
        first = prefork.begin("job-wait", key)
        second = prefork.send("job-wait", key)
        until(lambda: prefork.stage.notes(key, "signal-conflict"))
        prefork.stage.open(key)
        _end(first, second)
        monitor.look()

    assert [e for e in monitor.events if e["type"].startswith("task-")] == []


def _end(*results: AsyncResult) -> None:
    until(lambda: all(result.ready() for result in results), 30)


def test_workers_tell_the_names_of_their_nodes(prefork: Deployment) -> None:
    """They tell no password, and those with other nodes are told apart."""
    labels = runtime_of(prefork.app).redlock.labels

    def answered() -> Workers | None:
        workers = Workers(prefork.app)
        return workers if workers.tasks else None

    workers = until(answered, what="an answer")
    assert workers
    name = prefork.worker.container.node_name
    assert workers.by_nodes(labels) == ([name], [])
    assert workers.by_nodes(labels[:3]) == ([], [name])


def test_abort_names_the_workers_to_end_first(prefork: Deployment) -> None:
    """Those with the old nodes get locks again; those with other nodes must end."""
    worker = prefork.worker.container.node_name
    ours, elsewhere = ",".join(prefork.nodes.urls), "redis://127.0.0.1:1"

    def told(old: str, new: str) -> str:
        words = ("reconfigure", "--from", old, "--to", new, "--abort")
        context = CLIContext(app=prefork.app, no_color=False, workdir=None)
        said = CliRunner().invoke(redlock, words, obj=context, input="n\n").stdout
        return said if worker in said else ""  # it did not answer within a second

    there = until(lambda: told(ours, elsewhere), what="an answer")
    back = until(lambda: told(elsewhere, ours), what="an answer")
    assert f"1 running worker with the old nodes: {worker}.\n" in there
    assert "End" not in there
    assert f"End the workers with other nodes first: {worker}." in back


def test_doctor_names_workers_whose_locks_are_on_other_nodes(
    prefork: Deployment,
) -> None:
    """An error where no node is the same: nothing else compares the two lists."""
    worker = prefork.worker.container.node_name
    in_use, elsewhere = prefork.nodes.urls, ["redis://127.0.0.1:1", "redis://a:1"]

    def look(urls: list[str]) -> list[tuple[str, str, bool]]:
        case = doctor.Case(Redlock(urls), [], prefork.app)
        found = [*nodes_of_workers(case)]
        return [(it.code, it.severity.word, worker in it.fact) for it in found]

    assert look([*in_use]) == look([*reversed(in_use)]) == []
    for nodes, severity in ((elsewhere, "error"), ([*elsewhere, in_use[0]], "warning")):
        # It may not answer within a second.
        found = until(lambda: look(nodes), what="an answer")  # noqa: B023
        assert found == [("other-nodes", severity, True)]
