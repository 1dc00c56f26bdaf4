"""A new policy is one file: nothing else in the package has to know about it."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import states
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from celery_redlock import ConfigurationError, metrics, tracing
from celery_redlock.policies import ON_CONFLICT, ON_PUBLISH, policy
from celery_redlock.policies.base import POLICIES
from celery_redlock.testing import SignalRecorder
from docs.reference import generate
from tests.unit.support import CONFLICT
from tests.unit.tasks.support import Run, Worker

NAME = "tests.unit.policies.shout"


@pytest.fixture(autouse=True)
def shout() -> Iterator[Any]:
    """Import the file of the policy, and forget it after the test."""
    yield importlib.import_module(NAME).Shout
    del sys.modules[NAME], POLICIES["shout"]


@pytest.fixture
def refuse(worker: Worker) -> Callable[[], Run]:
    """Give a function that runs a task with the policy while its lock is held."""
    task, header = worker.leased_job(on_conflict="shout"), {"events": True}
    return lambda: worker.refuse(task, redlock=header)


def test_new_word_is_accepted_and_listed(shout: Any) -> None:
    """Options take the word and the decision; an error text lists both."""
    assert ON_CONFLICT.policy("shout")(CONFLICT) == shout()
    assert ON_CONFLICT.policy(lambda _: "shout")(CONFLICT) == shout()
    assert ON_CONFLICT.policy(shout("Hush"))(CONFLICT) == shout("Hush")
    assert ON_PUBLISH.policy("shout")(CONFLICT) == shout()
    with pytest.raises(ConfigurationError, match=r"'shout'.* Shout\(\)"):
        ON_CONFLICT.policy(17)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_conflict": "shuot"}, "Did you mean 'shout'?"),
        ({"on_backend_error": "shout"}, "on_backend_error='shout' does not exist"),
        ({"on_conflict": "shout", "wait_timeout": 5}, "has no effect"),
    ],
)
def test_new_word_is_refused_where_it_makes_no_sense(
    worker: Worker, options: dict[str, Any], reason: str
) -> None:
    """Its base classes say at which situations it can be used."""
    with pytest.raises(ConfigurationError) as refusal:
        worker.leased_job(**options)

    assert reason in str(refusal.value)


def test_new_policy_is_performed_in_a_worker(
    refuse: Callable[[], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """The result names the policy."""
    run = refuse()

    assert run.stored == states.REVOKED
    assert "(on_conflict: shout)" in str(run.result)
    assert capsys.readouterr().out == "Not again!\n"


def test_new_policy_is_performed_by_a_publisher(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets the result of the first job."""
    task = worker.unique_job(on_conflict="shout")
    first = task.delay(0)

    with caplog.at_level(logging.INFO), SignalRecorder() as events:
        second = task.delay(0)

    assert second.id == first.id
    assert events.of("publish_deduplicated")[0].decision.name == "shout"
    assert "will not be published, with a shout (on_conflict)" in caplog.text


def test_new_policy_is_logged_and_signalled(
    refuse: Callable[[], Run], caplog: pytest.LogCaptureFixture
) -> None:
    """Its name is a field of the log line, its description the text."""
    with caplog.at_level(logging.INFO), SignalRecorder("lock_conflict") as events:
        run = refuse()

    (line,) = [r for r in caplog.records if vars(r).get("redlock_decision")]
    assert vars(line)["redlock_decision"] == "shout"
    assert f"[{run.id}] will be skipped, with a shout" in line.getMessage()
    assert events.seen[0].decision.name == "shout"


def test_new_policy_is_counted(worker: Worker, refuse: Callable[[], Run]) -> None:
    """By its name, as policy and as decision."""
    registry = CollectorRegistry()
    installed = metrics.install(worker.app, registry=registry)

    refuse()
    installed.uninstall()

    labels = {"task": "job", "policy": "shout", "decision": "shout"}
    assert registry.get_sample_value("redlock_conflicts_total", labels) == 1


def test_new_policy_is_traced(worker: Worker, refuse: Callable[[], Run]) -> None:
    """Its name is the outcome of the wait."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    installed = tracing.install(worker.app, tracer_provider=provider)

    refuse()
    installed.uninstall()

    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["redlock.outcome"] == "shout"


def test_new_policy_is_sent_as_an_event(
    worker: Worker, refuse: Callable[[], Run]
) -> None:
    """Monitors get its name and its description."""
    events: list[dict[str, Any]] = []
    with worker.app.connection_for_read() as connection:
        receiver = worker.app.events.Receiver(connection, handlers={"*": events.append})
        with receiver.consumer_context() as (subscribed, _, _):
            run = refuse()
            while not any(event["type"] == "task-conflict" for event in events):
                subscribed.drain_events(timeout=5)

    (event,) = [event for event in events if event["type"] == "task-conflict"]
    assert (event["uuid"], event["policy"]) == (run.id, "shout")
    assert event["decision"] == "will be skipped, with a shout"


def test_new_policy_is_explained(worker: Worker) -> None:
    """``explain`` describes it in the same words as the log."""
    task = worker.leased_job(on_conflict="shout")

    with worker.held():
        step = task.explain().execute

    assert (step.decision, step.goes_on) == ("shout", False)
    assert step.words == "be skipped, with a shout"


def test_new_policy_is_documented() -> None:
    """The reference has a row with its word and its first sentence."""
    row = ("on_conflict", "shout", "Skip the call, and say so aloud.")

    assert row in list(generate.policy_rows())


def test_name_is_used_once(shout: Any) -> None:
    """A second class of the same name is refused."""
    with pytest.raises(ConfigurationError, match="'shout'"):
        policy(shout)
