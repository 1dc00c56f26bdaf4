"""Spans of locks: their times, attributes and parents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_redlock import LockLost, current_lease, singleton_task, tracing
from celery_redlock.core.lease import Holder, LeaseState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery
    from opentelemetry.sdk.trace import ReadableSpan

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"  # as W3C Trace Context writes it
SECOND = 1_000_000_000  # ns


class Spans:
    """The spans of one test.

    Attributes:
        provider: Receives the spans.
    """

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def the(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        spans = self._exporter.get_finished_spans()
        (found,) = [span for span in spans if span.name == name]
        return found

    @property
    def names(self) -> list[str]:
        """The names of all spans, in the order in which they ended."""
        return [span.name for span in self._exporter.get_finished_spans()]


@pytest.fixture
def spans(app: Celery) -> Iterator[Spans]:
    """Trace the locks of the app."""
    spans = Spans()
    installed = tracing.install(app, tracer_provider=spans.provider)
    yield spans
    installed.uninstall()


@pytest.fixture
def instrumented(spans: Spans) -> Iterator[None]:
    """Let OpenTelemetry trace Celery's tasks, too."""
    instrumentor: Any = CeleryInstrumentor  # is not typed
    instrumentor().instrument(tracer_provider=spans.provider)
    yield
    instrumentor().uninstrument()


def singleton(app: Celery, body: Any = None, **options: Any) -> Any:
    """Return a task with a key."""

    @singleton_task(app=app, shared=False, name="job", key="the-key", **options)
    def job() -> Any:
        return body and body()

    return job


def length(span: ReadableSpan) -> float:
    """Return the seconds from the start to the end of a span."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / SECOND


def parent_of(span: ReadableSpan) -> int:
    """Return the id of a span's parent."""
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    """Return the id of a span."""
    return context_of(span).span_id


def context_of(span: ReadableSpan) -> trace.SpanContext:
    """Return the context of a span, which has its ids."""
    context: trace.SpanContext | None = span.get_span_context()
    assert context is not None
    return context


# -- a call that gets its lock -----------------------------------------------------


def test_call_has_a_wait_and_a_hold(app: Celery, worker: Worker, spans: Spans) -> None:
    """Both have the key, the fence and the votes of the lock."""
    leases: list[Any] = []
    run = worker.run(singleton(app, lambda: leases.append(current_lease())))

    (lease,) = leases
    about = {
        "redlock.key": "the-key",
        "redlock.fence": lease.fence,
        "redlock.votes": 3,
        "redlock.ttl": 10.0,
        "celery.task_name": "job",
        "messaging.message.id": run.id,
    }
    wait, hold = spans.the("redlock.wait"), spans.the("redlock.hold")
    assert dict(wait.attributes or {}) == {**about, "redlock.outcome": "granted"}
    assert dict(hold.attributes or {}) == about
    assert spans.names == ["redlock.wait", "redlock.hold"]
    assert wait.end_time is not None
    assert hold.start_time is not None
    assert wait.end_time <= hold.start_time


@pytest.mark.usefixtures("instrumented")
def test_spans_are_part_of_the_tasks_span(
    app: Celery, worker: Worker, spans: Spans
) -> None:
    """The trace of the publisher continues through the lock into the body."""
    tracer = spans.provider.get_tracer("body")

    def body() -> None:
        with tracer.start_as_current_span("query"):
            pass

    worker.run(singleton(app, body), traceparent=TRACEPARENT)

    task, hold = spans.the("run/job"), spans.the("redlock.hold")
    wait, query = spans.the("redlock.wait"), spans.the("query")
    assert parent_of(task) == int(PARENT, 16)
    assert parent_of(wait) == parent_of(hold) == id_of(task)
    assert parent_of(query) == id_of(hold)
    traces = {context_of(span).trace_id for span in (task, hold, wait, query)}
    assert traces == {int(TRACE, 16)}


@pytest.mark.usefixtures("spans", "instrumented")
def test_nothing_is_current_after_the_task(app: Celery, worker: Worker) -> None:
    """The next task of this thread must not continue this trace."""
    worker.run(singleton(app), traceparent=TRACEPARENT)

    assert not trace.get_current_span().get_span_context().is_valid


def test_message_carries_the_trace_if_the_worker_traces_no_tasks(
    app: Celery, worker: Worker, spans: Spans
) -> None:
    """The spans of the lock are then children of the publisher's span."""
    worker.run(singleton(app), traceparent=TRACEPARENT)

    for name in ("redlock.wait", "redlock.hold"):
        assert parent_of(spans.the(name)) == int(PARENT, 16)


def test_lock_outside_of_a_task_is_part_of_the_current_span(
    app: Celery, spans: Spans
) -> None:
    """``task.lock()`` in a view is a child of the view's span."""
    tracer = spans.provider.get_tracer("view")

    with tracer.start_as_current_span("view"), singleton(app).lock():
        pass

    hold = spans.the("redlock.hold")
    assert parent_of(hold) == id_of(spans.the("view"))
    assert "messaging.message.id" not in (hold.attributes or {})


# -- conflicts, outages, losses ----------------------------------------------------


def test_wait_without_success_has_its_length_and_the_holder(
    app: Celery, worker: Worker, rival: Redlock, spans: Spans
) -> None:
    """There is one span from the first attempt to the decision, and no hold."""
    rival.acquire("the-key", holder=Holder.here(task="job", task_id="other-id"))

    worker.run(singleton(app, on_conflict="wait", wait_timeout=3))

    wait = spans.the("redlock.wait")
    assert spans.names == ["redlock.wait"]
    assert (wait.attributes or {})["redlock.outcome"] == "raise"
    assert (wait.attributes or {})["redlock.holder"] == "other-id"
    assert 2.5 < length(wait) < 3.5


def test_outage_is_an_error_of_the_wait(
    app: Celery, worker: Worker, nodes: FakeNodes, spans: Spans
) -> None:
    """It has the reason and the decision."""
    nodes.partition(0, 1)

    worker.run(singleton(app, on_backend_error="skip"))

    wait = spans.the("redlock.wait")
    assert wait.status.status_code is trace.StatusCode.ERROR
    assert (wait.attributes or {})["redlock.outcome"] == "skip"
    assert "1 of 3 nodes" in str((wait.attributes or {})["redlock.reason"])


def test_loss_is_an_error_of_the_hold(
    app: Celery, worker: Worker, nodes: FakeNodes, spans: Spans
) -> None:
    """It has an event at the instant at which the validity ended."""

    def body() -> None:
        lease = current_lease()
        assert lease is not None
        nodes.clock.sleep(60.0)
        lease.state = LeaseState.LOST  # as the watchdog does
        raise LockLost("lost", key=lease.key, fence=lease.fence)

    run = worker.run(singleton(app, body))

    hold = spans.the("redlock.hold")
    assert run.state == "FAILURE"
    assert hold.status.status_code is trace.StatusCode.ERROR
    (event,) = hold.events
    assert event.name == "redlock.lost"
    assert hold.end_time is not None
    assert (hold.end_time - event.timestamp) / SECOND == pytest.approx(50.1, abs=1.0)


def test_uninstalled_makes_no_spans(app: Celery, worker: Worker, spans: Spans) -> None:
    """Twice is harmless."""
    installed = tracing.install(app)
    installed.uninstall()
    installed.uninstall()

    worker.run(singleton(app))

    assert spans.names == []
