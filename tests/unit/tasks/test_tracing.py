"""Spans of locks: their times, attributes and parents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_redlock import LockLost, current_lease, tracing
from celery_redlock.locks.lease import LeaseState
from celery_redlock.locks.limits import Limit
from tests.unit.tasks.support import KEY, Worker

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"  # as W3C Trace Context writes it
SECOND = 1_000_000_000  # ns


class Spans:
    """The spans of one test."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def the(self, name: str) -> Any:
        """Return the only span of this name."""
        spans = self._exporter.get_finished_spans()
        (found,) = [span for span in spans if span.name == name]
        return found

    @property
    def names(self) -> list[str]:
        """The names of all spans, in the order in which they ended."""
        return [span.name for span in self._exporter.get_finished_spans()]


@pytest.fixture
def spans(worker: Worker) -> Iterator[Spans]:
    """Trace the locks of the app."""
    spans = Spans()
    installed = tracing.install(worker.app, tracer_provider=spans.provider)
    yield spans
    installed.uninstall()


@pytest.fixture
def instrumented(spans: Spans) -> Iterator[None]:
    """Let OpenTelemetry trace Celery's tasks, too."""
    instrumentor: Any = CeleryInstrumentor  # is not typed
    instrumentor().instrument(tracer_provider=spans.provider)
    yield
    instrumentor().uninstrument()


# -- a call that gets its lock -----------------------------------------------------


def test_call_has_a_wait_and_a_hold(worker: Worker, spans: Spans) -> None:
    """Both have the key, the fence and the votes of the lock."""
    leases: list[Any] = []

    def body() -> None:
        leases.append(current_lease())

    run = worker.run(worker.task()(body))

    (lease,) = leases
    about = {
        "redlock.key": KEY,
        "redlock.fence": lease.fence,
        "redlock.votes": 3,
        "redlock.ttl": 10.0,
        "celery.task_name": "job",
        "messaging.message.id": run.id,
    }
    wait, hold = spans.the("redlock.wait"), spans.the("redlock.hold")
    assert dict(wait.attributes) == {**about, "redlock.outcome": "granted"}
    assert dict(hold.attributes) == about
    assert spans.names == ["redlock.wait", "redlock.hold"]
    assert wait.end_time <= hold.start_time


@pytest.mark.usefixtures("instrumented")
def test_spans_are_part_of_the_tasks_span(worker: Worker, spans: Spans) -> None:
    """The trace of the publisher continues through the lock into the body."""
    tracer = spans.provider.get_tracer("body")

    def body() -> None:
        with tracer.start_as_current_span("query"):
            pass

    worker.run(worker.task()(body), traceparent=TRACEPARENT)

    task, hold = spans.the("run/job"), spans.the("redlock.hold")
    wait, query = spans.the("redlock.wait"), spans.the("query")
    assert task.parent.span_id == int(PARENT, 16)
    assert wait.parent.span_id == hold.parent.span_id == task.context.span_id
    assert query.parent.span_id == hold.context.span_id
    traces = {span.context.trace_id for span in (task, hold, wait, query)}
    assert traces == {int(TRACE, 16)}


@pytest.mark.usefixtures("spans", "instrumented")
def test_nothing_is_current_after_the_task(worker: Worker) -> None:
    """The next task of this thread must not continue this trace."""
    worker.run(worker.leased_job(), traceparent=TRACEPARENT)

    assert not trace.get_current_span().get_span_context().is_valid


def test_message_carries_the_trace_if_the_worker_traces_no_tasks(
    worker: Worker, spans: Spans
) -> None:
    """The spans of the lock are then children of the publisher's span."""
    worker.run(worker.leased_job(), traceparent=TRACEPARENT)

    for name in ("redlock.wait", "redlock.hold"):
        assert spans.the(name).parent.span_id == int(PARENT, 16)


def test_lock_outside_of_a_task_is_part_of_the_current_span(
    worker: Worker, spans: Spans
) -> None:
    """``task.lock()`` in a view is a child of the view's span."""
    tracer = spans.provider.get_tracer("view")

    with tracer.start_as_current_span("view"), worker.leased_job().lock():
        pass

    hold = spans.the("redlock.hold")
    assert hold.parent.span_id == spans.the("view").context.span_id
    assert "messaging.message.id" not in hold.attributes


# -- conflicts, outages, losses ----------------------------------------------------


def test_wait_without_success_has_its_length_and_the_holder(
    worker: Worker, spans: Spans
) -> None:
    """There is one span from the first attempt to the decision, and no hold."""
    worker.refuse(worker.leased_job(on_conflict="wait", wait_timeout=3))

    wait = spans.the("redlock.wait")
    assert spans.names == ["redlock.wait"]
    assert wait.attributes["redlock.outcome"] == "raise"
    assert wait.attributes["redlock.holder"] == "other-id"
    assert 2.5 < (wait.end_time - wait.start_time) / SECOND < 3.5


def test_spans_of_a_permit_have_the_key_and_the_permit(
    worker: Worker, spans: Spans
) -> None:
    """The key is that of all calls. A permit for a start is named, too."""
    worker.rival.acquire(KEY)

    worker.run(worker.leased_job(limit=2, rate="1/m"))

    for name in ("redlock.wait", "redlock.hold"):
        attributes = spans.the(name).attributes
        assert attributes["redlock.key"] == KEY
        assert attributes["redlock.permit"] == f"{KEY}##2\n{KEY}@@1"


def test_wait_for_a_permit_has_the_limit(worker: Worker, spans: Spans) -> None:
    """It says how many permits the key has, all of which had a holder."""
    for _ in range(2):
        worker.rival.acquire(KEY, limits=(Limit(KEY, 2),))

    worker.run(worker.leased_job(limit=2, on_conflict="skip"))

    wait = spans.the("redlock.wait")
    assert wait.attributes["redlock.key"] == KEY
    assert wait.attributes["redlock.limit"] == 2
    assert "redlock.permit" not in wait.attributes


def test_outage_is_an_error_of_the_wait(worker: Worker, spans: Spans) -> None:
    """It has the reason and the decision."""
    worker.nodes.partition(0, 1)

    worker.run(worker.leased_job(on_backend_error="skip"))

    wait = spans.the("redlock.wait")
    assert wait.status.status_code is trace.StatusCode.ERROR
    assert wait.attributes["redlock.outcome"] == "skip"
    assert "1 of 3 nodes" in str(wait.attributes["redlock.reason"])


def test_loss_is_an_error_of_the_hold(worker: Worker, spans: Spans) -> None:
    """It has an event at the instant at which the validity ended."""

    def body() -> None:
        lease = current_lease()
        assert lease is not None
        worker.nodes.clock.sleep(60.0)
        lease.state = LeaseState.LOST  # as the watchdog does
        raise LockLost("lost", key=lease.key, fence=lease.fence)

    run = worker.run(worker.task()(body))

    hold = spans.the("redlock.hold")
    assert run.state == "FAILURE"
    assert hold.status.status_code is trace.StatusCode.ERROR
    (event,) = hold.events
    assert event.name == "redlock.lost"
    assert (hold.end_time - event.timestamp) / SECOND == pytest.approx(50.1, abs=1.0)


def test_loss_that_shows_at_the_end_is_an_error_of_the_hold(
    worker: Worker, spans: Spans
) -> None:
    """A process that was suspended may end its body before its watchdog looks."""

    @worker.task()
    def job() -> None:
        worker.nodes.clock.sleep(60.0)

    run = worker.run(job)

    hold = spans.the("redlock.hold")
    assert run.state == "FAILURE"
    assert hold.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in hold.events] == ["redlock.lost"]


def test_uninstalled_makes_no_spans(worker: Worker, spans: Spans) -> None:
    """Twice is harmless."""
    installed = tracing.install(worker.app)
    installed.uninstall()
    installed.uninstall()

    worker.run(worker.leased_job())

    assert spans.names == []
