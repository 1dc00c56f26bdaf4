"""A refusal costs no more than a run: what is formatted, stored and sent for it."""

from __future__ import annotations

import functools
import gc
import logging
import pickle
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import billiard.einfo
import pytest
from celery import signals, states
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Retry
from celery.result import AsyncResult
from kombu.utils.uuid import uuid

from celery_redlock import DuplicateTask, LockHeld
from celery_redlock.policies import Conflict
from celery_redlock.task.ends import EndedAsRevoked
from tests.nodes.support import run_python
from tests.unit.tasks.support import KEY, Worker


@pytest.fixture
def formatted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the list of the lengths of all tracebacks that Celery formats."""
    lengths: list[int] = []
    usual = billiard.einfo.traceback.format_exception

    def count(kind: Any, error: Any, tb: Any) -> Any:
        lengths.append(sum(1 for _ in billiard.einfo.traceback.walk_tb(tb)))
        assert error.__context__ is None
        assert error.__cause__ is None
        return usual(kind, error, tb)

    monkeypatch.setattr(billiard.einfo.traceback, "format_exception", count)
    return lengths


def traced(worker: Worker, task: Any, *, tracer: Any = None, **request: Any) -> Any:
    """Trace a call of a task as a worker does, and return Celery's outcome."""
    task = worker.app.tasks[task.name]
    task.__trace__ = tracer or build_tracer(task.name, task, app=worker.app)
    delivery = {"exchange": "", "routing_key": worker.app.conf.task_default_queue}
    request = {"id": worker.call_id, "delivery_info": delivery, **request}
    return task.__trace__(worker.call_id, [], {}, {"is_eager": False, **request})


def stored(worker: Worker) -> AsyncResult[Any]:
    """Return the stored result of the call that was traced."""
    return AsyncResult(worker.call_id, app=worker.app)


# Before Python 3.11, `sys.exc_info` keeps the traceback that an error was raised with.
_ONE = [1] if sys.version_info >= (3, 11) else [2]


def test_skipped_call_formats_one_line(worker: Worker, formatted: list[int]) -> None:
    """Celery formats two tracebacks for any other call that it ignores."""
    task = worker.leased_job()

    with worker.held():
        outcome = traced(worker, task)

    assert formatted == _ONE
    is_short = "in refused by its policy;" in outcome.retval.traceback
    assert is_short == (sys.version_info >= (3, 11))
    assert (outcome.info.state, stored(worker).state) == (
        states.IGNORED,
        states.REVOKED,
    )
    sent = pickle.loads(pickle.dumps(outcome.retval))  # noqa: S301  (our own)
    assert isinstance(sent.exception, BaseException)
    assert isinstance(getattr(sent.exception, "exc", sent.exception), EndedAsRevoked)


def test_traceback_of_a_refusal_shows_no_source() -> None:
    """A line of this package would read like the place of a fault.

    It is formatted in a process of its own: in this one, the package was imported by
    pytest, which gives away no source.
    """
    code = (
        "import traceback; from celery_redlock.task.trace_info import _TRACEBACK;"
        "print(''.join(traceback.format_tb(_TRACEBACK)), end='')"
    )

    (line,) = run_python(code)

    assert "refused by its policy; the body did not run" in line


def test_traceback_of_a_refusal_is_one_that_django_can_mail() -> None:
    """Django mails what Celery logs as an error, and looks at each instruction."""
    pytest.importorskip("django")
    code = (
        "from django.conf import settings; settings.configure(); "
        "from django.views.debug import ExceptionReporter; "
        "from celery_redlock.task.trace_info import _TRACEBACK; "
        "error = ValueError().with_traceback(_TRACEBACK); "
        "reporter = ExceptionReporter(None, ValueError, error, _TRACEBACK); "
        "print(*(one['function'] for one in reporter.get_traceback_frames()))"
    )

    assert run_python(code) == ["refused by its policy; the body did not run"]


@pytest.mark.parametrize("policy", ["raise", "retry", "buffer_one"])
def test_refused_call_formats_one_short_traceback(
    worker: Worker, formatted: list[int], policy: str
) -> None:
    """It has one line, and Celery's tracer with its long code is not in it."""
    task = worker.leased_job(on_conflict=policy)

    with worker.held():
        outcome = traced(worker, task)

    assert formatted == ([1] if policy == "raise" else _ONE)
    assert outcome.retval.tb is None
    error = outcome.info.retval
    assert DuplicateTask in (type(error), type(getattr(error, "exc", None)))


@pytest.mark.parametrize("policy", ["skip", "raise", "retry"])
def test_refusal_is_stored_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """One state for one end of a copy.

    RETRY is stored before the call is published again, and not after it: the next copy
    may have ended by then. Celery 5.5 cannot be asked to leave it out.
    """
    task = worker.leased_job(on_conflict=policy)
    states_stored: list[str] = []
    usual = type(task.backend).store_result

    def count(self: Any, task_id: str, result: Any, state: str, **named: Any) -> Any:
        states_stored.append(state)
        return usual(self, task_id, result, state, **named)

    monkeypatch.setattr(type(task.backend), "store_result", count)

    with worker.held():
        traced(worker, task)

    ends = {"skip": states.REVOKED, "raise": states.FAILURE, "retry": states.RETRY}
    assert states_stored == [ends[policy]]


@pytest.fixture
def ended() -> Iterator[list[tuple[str, str, BaseException]]]:
    """Give what Celery's signal says of each call that ends: id, state and value."""
    ends: list[tuple[str, str, BaseException]] = []

    def note(task_id: str, state: str, retval: BaseException, **_: Any) -> None:
        ends.append((task_id, state, retval))

    signals.task_postrun.connect(note)
    yield ends
    signals.task_postrun.disconnect(note)


@pytest.mark.parametrize("policy", ["skip", "raise", "retry", "buffer_one"])
def test_refusals_leave_no_cycle_to_the_collector(worker: Worker, policy: str) -> None:
    """There may be thousands for one run. The context keeps the last one alone."""
    task = worker.app.tasks[worker.leased_job(on_conflict=policy).name]
    tracer = build_tracer(task.name, task, app=worker.app)
    refusals: list[weakref.ref[BaseException]] = []

    def note(retval: BaseException, **_: Any) -> None:
        refusals.append(weakref.ref(retval))

    signals.task_postrun.connect(note)
    gc.disable()
    try:
        with worker.held():
            for _ in range(2):
                traced(worker, task, tracer=tracer)
        assert refusals[0]() is None
    finally:
        gc.enable()
        signals.task_postrun.disconnect(note)


@pytest.mark.parametrize(
    ("policy", "state", "kind"),
    [
        ("skip", states.IGNORED, Ignore),
        ("raise", states.FAILURE, DuplicateTask),
        ("retry", states.RETRY, Retry),
    ],
)
def test_refused_call_ends_as_each_call(
    worker: Worker,
    ended: list[tuple[str, str, BaseException]],
    policy: str,
    state: str,
    kind: type[BaseException],
) -> None:
    """Celery's signal says how, and the next call has a request of its own."""
    task = worker.leased_job(on_conflict=policy)

    with worker.held():
        traced(worker, task)

    ((task_id, how, retval),) = ended
    assert (task_id, how) == (worker.call_id, state)
    assert isinstance(retval, kind)
    assert policy == "skip" or "DuplicateTask" in repr(retval)  # as events show it
    assert task.request.id is None
    worker.call_id = uuid()
    assert traced(worker, task).retval is True


def test_wrapped_tracer_formats_as_little(worker: Worker, formatted: list[int]) -> None:
    """Monitoring libraries wrap the tracer that Celery has built."""
    task = worker.app.tasks[worker.leased_job(on_conflict="raise").name]
    tracer = build_tracer(task.name, task, app=worker.app)

    @functools.wraps(tracer)
    def observed(*args: Any, **named: Any) -> Any:
        return tracer(*args, **named)

    with worker.held():
        outcome = traced(worker, task, tracer=observed)

    assert formatted == [1]
    assert outcome.info.state == states.FAILURE


def test_tracer_of_another_kind_is_left_alone(worker: Worker) -> None:
    """Its refusals end in the same way."""
    task = worker.app.tasks[worker.leased_job().name]
    tracer = functools.partial(build_tracer(task.name, task, app=worker.app))

    with worker.held():
        outcome = traced(worker, task, tracer=tracer)

    assert (outcome.info.state, stored(worker).state) == (
        states.IGNORED,
        states.REVOKED,
    )


def test_error_of_a_body_keeps_its_traceback(worker: Worker) -> None:
    """A body that meets a duplicate of another call ends in an error of its own."""

    @worker.task()
    def job() -> None:
        raise DuplicateTask(KEY)

    outcome = traced(worker, job)

    assert outcome.retval.tb is not None
    assert "in job" in outcome.retval.traceback


def test_error_of_a_body_that_applies_a_refused_call_keeps_its_traceback(
    worker: Worker,
) -> None:
    """It is the very error in which that call has ended, but this body has run."""
    worker.app.conf.redlock_eager = True
    inner = worker.leased_job(on_conflict="raise")

    @worker.task(name="outer", key="outer")
    def outer() -> None:
        inner.apply().get()

    with worker.held():
        outcome = traced(worker, outer)

    assert isinstance(stored(worker).result, DuplicateTask)
    assert "in outer" in outcome.retval.traceback
    assert outcome.retval.tb is not None


def test_error_of_a_policy_keeps_its_traceback(worker: Worker) -> None:
    """A callable of the project has a fault, and its line is the way to it."""

    def choose(_: Conflict) -> str:
        raise KeyError("customer")

    task = worker.leased_job(on_conflict=choose)

    with worker.held():
        outcome = traced(worker, task)

    assert isinstance(stored(worker).result, KeyError)
    assert "in choose" in outcome.retval.traceback


@pytest.mark.parametrize("is_always", [False, True])
def test_eager_call_that_is_skipped_ends_as_in_a_worker(
    worker: Worker, *, is_always: bool
) -> None:
    """It is REVOKED, and names the holder; what a chain sends next does not run."""
    worker.app.conf.update(task_always_eager=is_always, redlock_eager=True)
    task = worker.leased_job()

    with worker.held():
        result = task.delay() if is_always else task.apply()
        with pytest.raises(DuplicateTask):
            (task.si() | task.si()).apply()

    assert result.state == states.REVOKED
    with pytest.raises(DuplicateTask, match="other-id"):
        result.get()


# -- options of Celery about errors ------------------------------------------------


@pytest.mark.parametrize(
    ("named", "state"),
    [
        (DuplicateTask, states.RETRY),
        (LockHeld, states.RETRY),
        (Exception, states.FAILURE),
    ],
)
def test_autoretry_that_names_the_error_retries_a_refused_call(
    worker: Worker, named: type[Exception], state: str
) -> None:
    """Other errors that it names are those of the body, which has not begun."""
    task = worker.leased_job(
        on_conflict="raise", autoretry_for=(named,), retry_kwargs={"countdown": 7}
    )

    run = worker.refuse(task)

    assert run.stored == state
    assert [h["retries"] for h, _ in worker.published] == [1] * (state == states.RETRY)


@pytest.mark.parametrize("policy", ["retry", "buffer_one", "cancel_running"])
def test_eager_duplicate_fails_because_it_has_no_queue(
    worker: Worker, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not republished, and neither its error nor the log says that it is."""
    caplog.set_level(logging.INFO, "celery_redlock")
    worker.app.conf.update(task_always_eager=True, redlock_eager=True)
    task = worker.leased_job(on_conflict=policy)

    with worker.held():
        result = task.delay()

    assert isinstance(result.result, DuplicateTask)
    assert f"{result.id}] did not run: it has no queue (" in str(result.result)
    assert worker.messages() == []
    assert "will fail, as it runs eagerly" in caplog.text
    assert "republished" not in caplog.text


def test_autoretry_ends_with_the_refusal(worker: Worker) -> None:
    """After ``max_retries`` the call has failed as a duplicate."""
    task = worker.leased_job(
        on_conflict="raise", autoretry_for=(DuplicateTask,), max_retries=2
    )

    run = worker.refuse(task, retries=2)

    assert run.stored == states.FAILURE
    assert isinstance(run.result, DuplicateTask)
    assert worker.published == []


@pytest.mark.parametrize(
    "throws",
    [(), None, (ValueError,), ValueError, (DuplicateTask, KeyError), (Exception,)],
)
def test_throws_of_a_task_leaves_a_duplicate_expected(
    worker: Worker, throws: Any
) -> None:
    """Celery logs an expected error at INFO, and error trackers leave it out."""
    task = worker.leased_job(on_conflict="raise", throws=throws)

    given = throws if isinstance(throws, tuple) else (throws,)
    assert {*given} - {None} <= {*task.throws}
    assert issubclass(DuplicateTask, task.throws)
    assert len(task.throws) == len(set(task.throws))
