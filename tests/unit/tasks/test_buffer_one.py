"""What a worker does with a call that is to follow the one that runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from celery_redlock import DuplicateTask, singleton_task
from celery_redlock.policies import BufferOne, Conflict, Skip
from celery_redlock.testing import SignalRecorder
from tests.unit.tasks.support import buffered, held

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Run, Worker


def envelope(run: Run, worker: Worker) -> dict[str, Any]:
    """Return what the copy of a call that was put back says to us."""
    ((headers, _),) = [
        message for message in worker.published if message[0]["id"] == run.id
    ]
    return dict(headers["redlock"])


def published(seconds: float) -> dict[str, Any]:
    """Return the header of a call that was published then."""
    return {"published": 1_795_246_614_000_000 + round(seconds * 1e6)}


def refused(worker: Worker, rival: Redlock, task: Any, *numbers: int) -> list[Run]:
    """Run calls while another has the lock, each published at its number of seconds."""
    with held(rival):
        return [worker.run(task, at, redlock=published(at)) for at in numbers]


def come_back(worker: Worker, task: Any, run: Run, number: int) -> Run:
    """Run the copy of a call that was put back."""
    return worker.run(task, number, id=run.id, redlock=envelope(run, worker))


# -- the run that follows ----------------------------------------------------------


def test_refused_call_goes_back_into_its_queue(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """It is published again as the same call, remembers when it was published, ends."""
    task = buffered(app)

    (run,) = refused(worker, rival, task, 1)

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    assert isinstance(run.result, DuplicateTask)
    for word in ("other-id", "buffer_one", "'k'"):
        assert word in str(run.result)
    said = envelope(run, worker)
    assert (said["deferred"], said["next"]) == (1, "latest")
    assert said["published"] == published(1)["published"]


def test_older_call_ends_and_says_by_whom(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """A superseded copy is skipped: REVOKED, with the other's id."""
    task = buffered(app)

    newer, older = refused(worker, rival, task, 2, 1)

    assert (newer.stored, older.stored) == (states.RETRY, states.REVOKED)
    assert f"{newer.id} runs in its stead" in str(older.result)
    assert len(worker.published) == 1


def test_call_that_comes_back_runs_as_the_next(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """With the lock free it runs, and those that it stands for do not."""
    task = buffered(app)
    older, newer = refused(worker, rival, task, 1, 2)

    second = come_back(worker, task, newer, 2)
    first = come_back(worker, task, older, 1)

    assert (second.stored, second.result) == (states.SUCCESS, 2)
    assert first.stored == states.REVOKED
    assert f"{newer.id} runs in its stead" in str(first.result)


def test_call_that_has_the_lock_before_its_turn_gives_it_back(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """The older one comes back first: it ends, and the lock is free for the newer."""
    task = buffered(app)
    older, newer = refused(worker, rival, task, 1, 2)

    run = come_back(worker, task, older, 1)

    assert run.stored == states.REVOKED
    assert rival.inspect("k").holder is None
    assert come_back(worker, task, newer, 2).stored == states.SUCCESS


def test_first_keeps_its_place(app: Celery, worker: Worker, rival: Redlock) -> None:
    """``buffer_keep="first"``: later ones end at once."""
    task = buffered(app, buffer_keep="first")

    first, later = refused(worker, rival, task, 1, 2)

    assert (first.stored, later.stored) == (states.RETRY, states.REVOKED)


def test_one_whose_result_is_final_stands_for_nobody(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """It was revoked while it waited, or killed: the next one takes its place."""
    task = buffered(app)

    with held(rival):
        gone = worker.run(task, 2, redlock=published(2))
        task.backend.mark_as_revoked(gone.id, "revoked")
        older = worker.run(task, 1, redlock=published(1))

    assert older.stored == states.RETRY


def test_call_without_a_result_backend_is_superseded_as_well(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """Where no result is kept nobody looks for one."""
    task = buffered(app, ignore_result=True)

    _, older = refused(worker, rival, task, 2, 1)

    assert (older.state, older.stored) == (states.IGNORED, states.PENDING)
    assert len(worker.published) == 1


def test_call_that_ends_otherwise_leaves_its_place(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """A callable that has second thoughts makes way for those that wait."""
    answers: list[Any] = [BufferOne(), Skip(), BufferOne()]
    task = buffered(app, on_conflict=lambda _: answers.pop(0))

    with held(rival):
        newer = worker.run(task, 2, redlock=published(2))
        again = come_back(worker, task, newer, 2)
        older = worker.run(task, 1, redlock=published(1))

    assert (again.stored, older.stored) == (states.REVOKED, states.RETRY)


def test_unreachable_nodes_supersede_nobody(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """The nodes go between the refusal and the offer: the call waits, unentered."""

    def cut_off(_: Conflict) -> str:
        nodes.partition(0, 1)
        return "buffer_one"

    task = buffered(app, on_conflict=cut_off)

    (run,) = refused(worker, rival, task, 1)

    assert run.stored == states.RETRY
    assert "next" not in envelope(run, worker)


def test_eager_duplicate_is_an_error(app: Celery, rival: Redlock) -> None:
    """There is no queue in which it could wait."""
    app.conf.update(task_always_eager=True, redlock_eager=True)
    task = buffered(app)

    with held(rival):
        result = task.delay(1)

    assert isinstance(result.result, DuplicateTask)


@pytest.mark.parametrize("deferred", [0, 3, 20, 5000])
def test_call_looks_again_after_longer_and_longer(
    app: Celery, worker: Worker, rival: Redlock, deferred: int
) -> None:
    """After a second at first, after up to half a ttl in the end, however long."""
    task = buffered(app)
    began = datetime.now(timezone.utc)

    with held(rival):
        run = worker.run(task, 1, redlock={**published(1), "deferred": deferred})

    ended = datetime.now(timezone.utc)
    ((headers, _),) = worker.published
    eta = datetime.fromisoformat(headers["eta"])
    longest = timedelta(seconds=min(5.0, 2.0 ** min(deferred, 10)))  # the ttl is 10 s
    assert began + longest / 2 <= eta <= ended + longest
    assert run.stored == states.RETRY


def test_retry_countdown_says_when_to_look_again(
    app: Celery, worker: Worker, rival: Redlock
) -> None:
    """Also with ``buffer_one``."""
    task = buffered(app, retry_countdown=77)

    refused(worker, rival, task, 1)

    ((headers, _),) = worker.published
    left = datetime.fromisoformat(headers["eta"]) - datetime.now(timezone.utc)
    assert timedelta(seconds=70) < left <= timedelta(seconds=77)


def test_decision_is_told_in_full(app: Celery, worker: Worker, rival: Redlock) -> None:
    """The signal names what was decided, with the task's options filled in."""
    task = buffered(app, buffer_keep="first", retry_countdown=5)

    with SignalRecorder("lock_conflict") as events, held(rival):
        worker.run(task, 1)

    assert events.seen[0].decision == BufferOne("first", 5.0)


# -- when it was published ---------------------------------------------------------


def test_publisher_says_when(app: Celery, worker: Worker) -> None:
    """To the microsecond, so that two calls are told apart."""
    task = buffered(app)

    task.delay(1)
    task.delay(2)
    worker.collect()

    stamps = [headers["redlock"]["published"] for headers, _ in worker.published]
    assert stamps == sorted(set(stamps))


def test_publisher_says_nothing_where_nobody_asks(app: Celery, worker: Worker) -> None:
    """Other policies do not care."""
    task = buffered(app, on_conflict="skip")

    task.delay(1)
    worker.collect()

    ((headers, _),) = worker.published
    assert "redlock" not in (headers or {})


def test_retry_of_a_call_is_as_old_as_the_call(app: Celery, worker: Worker) -> None:
    """``self.retry()`` publishes old arguments; they are no newer for that."""

    @singleton_task(
        app=app,
        shared=False,
        name="retrying",
        key="k",
        bind=True,
        on_conflict="buffer_one",
    )
    def retrying(self: Any) -> None:
        raise self.retry(countdown=1)

    worker.run(retrying, redlock=published(1))

    ((headers, _),) = worker.published
    assert headers["redlock"] == published(1)
