"""Ways to run a body without its lock: refused, or with a warning."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, shared_task, signals, states
from celery.app import builtins

from celery_redlock import ConfigurationError, SingletonTask, current_lease
from tests.unit.tasks.support import Worker

BUILTINS = {
    "map": builtins.add_map_task,
    "starmap": builtins.add_starmap_task,
}


class Collecting(Task):
    """Makes a list of what the body yields."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the generator."""
        return list(super().__call__(*args, **kwargs))


class Passing(SingletonTask):
    """Stands in front of the lock."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call on."""
        return super().__call__(*args, **kwargs)


class Above(SingletonTask):
    """Makes the list after the lock has ended."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the generator, too late."""
        return list(super().__call__(*args, **kwargs))


def pages() -> Iterator[bool]:
    """Yield whether the lock is held."""
    yield current_lease() is not None


@pytest.mark.parametrize("base", [None, Above])
def test_generator_that_nothing_consumes_under_the_lock_is_refused(
    worker: Worker, base: type[Task] | None
) -> None:
    """Its work would begin after the lock has ended, as that of a coroutine."""
    with pytest.raises(ConfigurationError, match="with yield, and nothing runs"):
        worker.task(base=base)(pages)


def test_generator_is_consumed_under_the_lock_by_a_base_class(worker: Worker) -> None:
    """The base class stands behind the lock."""
    assert worker.run(worker.task(base=Collecting)(pages)).result == [True]


def test_generator_that_a_body_returns_is_refused(worker: Worker) -> None:
    """The body is no generator function, but its work is not done either."""

    def job() -> Any:
        return pages()

    run = worker.run(worker.task()(job))

    assert isinstance(run.result, ConfigurationError)
    assert "must still be consumed" in str(run.result)


@pytest.mark.parametrize("is_real", [False, True], ids=["like", "real"])
def test_base_class_of_celery_batches_is_refused(
    worker: Worker, *, is_real: bool
) -> None:
    """It runs the body with a list of calls, outside of the task's own call."""
    about = {"abstract": True, "__module__": "celery_batches"}
    batches = type("Batches", (Task,), about)
    if is_real:  # it is no requirement: its own one is an old Celery
        reason = "pip install --no-deps celery-batches"
        batches = pytest.importorskip("celery_batches", reason=reason).Batches

    def job(_: Any) -> None:
        """Do nothing."""

    with pytest.raises(ConfigurationError, match="Batches of celery-batches"):
        worker.task(base=batches)(job)
    composed = type("Composed", (SingletonTask, batches), {"abstract": True})
    with pytest.raises(ConfigurationError, match="Batches of celery-batches"):
        worker.app.task(base=composed, name="x", lazy=False)(job)


def retrying(app: Celery) -> Any:
    """Return the decorator of a task whose function Celery wraps."""
    return functools.partial(app.task, autoretry_for=(KeyError,))


@pytest.mark.parametrize(
    "decorator",
    [lambda app: app.task, lambda _: shared_task, retrying],
    ids=["app.task", "shared_task", "with autoretry"],
)
def test_worker_with_a_task_above_a_lock_task_does_not_start(
    worker: Worker, decorator: Any
) -> None:
    """Celery would call the task inside as a function, without its lock."""
    decorator(worker.app)(name="above")(worker.leased_job())

    with pytest.raises(
        SystemExit, match="above is the task job, and would run without"
    ):
        signals.worker_init.send(sender=worker)


@pytest.mark.parametrize("how", list(BUILTINS))
def test_map_of_a_lock_task_is_warned_about_once(
    worker: Worker, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Celery's own tasks call it as a plain function; chunks are starmaps."""
    sig = worker.leased_job().s()

    with caplog.at_level(logging.WARNING):
        run = worker.run(BUILTINS[how](worker.app), sig, [(1,), (2,)])

    assert run.stored == states.SUCCESS
    assert caplog.text.count("job runs without its lock") == 1


@pytest.mark.parametrize("base", [None, Passing], ids=["plain", "base"])
def test_errback_that_celery_calls_is_warned_about(
    worker: Worker, caplog: pytest.LogCaptureFixture, base: type[Task] | None
) -> None:
    """It takes more than the id of the call that failed, and runs where that did."""
    leases: list[Any] = []

    def job(_reason: str, _order: int) -> None:
        leases.append(current_lease())

    errback = worker.task(base=base)(job).si("late", 1)

    @worker.app.task(name="failing", shared=False)
    def failing() -> None:
        raise ValueError

    with caplog.at_level(logging.WARNING):
        worker.run(failing, errbacks=[errback])

    assert leases == [None]
    assert "job runs without its lock: link_error calls it" in caplog.text


def test_body_that_calls_a_lock_task_is_not_warned_about(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """A function call is a function call, as the docs say; in an errback, too."""
    job = worker.leased_job()

    @worker.app.task(name="caller", shared=False)
    def caller(*_: Any) -> bool:
        return bool(job())

    @worker.app.task(name="failing", shared=False)
    def failing() -> None:
        raise ValueError

    with caplog.at_level(logging.WARNING):
        assert worker.run(caller).result is False
        worker.run(failing, errbacks=[caller.s()])

    assert "without its lock" not in caplog.text
