"""``buffer_one`` in a worker: one of the refused calls follows the running one."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import states

from celery_redlock import DuplicateTask
from celery_redlock.policies import BufferOne, Conflict, Skip
from celery_redlock.task.call import Call
from celery_redlock.testing import SignalRecorder
from tests.unit.tasks.support import KEY, Run, Worker


def header(run: Run, worker: Worker) -> dict[str, Any]:
    """Return our header on the republished copy of a call."""
    headers = {headers["id"]: headers for headers, _ in worker.published}
    return dict(headers[run.id]["redlock"])


def published(seconds: float) -> dict[str, Any]:
    """Return the header of a call that was published at this time."""
    return {"published": 1_795_246_614_000_000 + round(seconds * 1e6)}


def refused(worker: Worker, task: Any, *numbers: int) -> list[Run]:
    """Run calls, published at these seconds, while another one holds the lock."""
    with worker.held():
        return [worker.run(task, at, redlock=published(at)) for at in numbers]


def come_back(worker: Worker, task: Any, run: Run, number: int) -> Run:
    """Run the republished copy of a call."""
    return worker.run(task, number, id=run.id, redlock=header(run, worker))


# -- the successor ----------------------------------------------------------


def test_refused_call_is_republished(worker: Worker) -> None:
    """The copy is the same call, and keeps the time at which it was published first."""
    (run,) = refused(worker, worker.buffered(), 1)

    assert (run.state, run.stored) == (states.RETRY, states.RETRY)
    assert isinstance(run.result, DuplicateTask)
    for word in ("other-id", "buffer_one", f"'{KEY}'"):
        assert word in str(run.result)
    said = header(run, worker)
    assert (said["deferred"], said["next"]) == (1, "latest")
    assert said["published"] == published(1)["published"]


def test_successor_runs_when_it_returns(worker: Worker) -> None:
    """With the lock free it runs, and the calls that it has superseded do not."""
    task = worker.buffered()
    older, newer = refused(worker, task, 1, 2)

    second = come_back(worker, task, newer, 2)
    first = come_back(worker, task, older, 1)

    assert (second.stored, second.result) == (states.SUCCESS, 2)
    assert first.stored == states.REVOKED
    assert f"{newer.id} runs instead" in str(first.result)


def test_superseded_call_releases_the_lock(worker: Worker) -> None:
    """The older call returns first: it ends, and the lock is free for the newer one."""
    task = worker.buffered()
    older, newer = refused(worker, task, 1, 2)

    run = come_back(worker, task, older, 1)

    assert run.stored == states.REVOKED
    assert worker.rival.inspect(KEY).holder is None
    assert come_back(worker, task, newer, 2).stored == states.SUCCESS


def test_first_keeps_its_place(worker: Worker) -> None:
    """With ``buffer_keep="first"`` later calls end at once."""
    first, later = refused(worker, worker.buffered(buffer_keep="first"), 1, 2)

    assert (first.stored, later.stored) == (states.RETRY, states.REVOKED)


def test_call_with_a_final_result_supersedes_no_other(worker: Worker) -> None:
    """It was revoked while it waited, or killed: the next call takes its place."""
    task = worker.buffered()

    with worker.held():
        gone = worker.run(task, 2, redlock=published(2))
        task.backend.mark_as_revoked(gone.id, "revoked")
        older = worker.run(task, 1, redlock=published(1))

    assert older.stored == states.RETRY


def test_call_that_ran_while_the_nodes_replied_has_superseded_the_older_one(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes said that it waits; then it ran and ended. No older call runs now."""
    task = worker.buffered()
    older, newer = refused(worker, task, 1, 2)
    look = Call.other_has_ended
    ran: list[str] = []

    def has_ended(call: Call, task_id: str) -> bool:
        if not ran:
            ran.append(task_id)
            holding.close()
            assert come_back(worker, task, newer, 2).stored == states.SUCCESS
        return look(call, task_id)

    monkeypatch.setattr(Call, "other_has_ended", has_ended)
    with contextlib.ExitStack() as holding:
        holding.enter_context(worker.held(newer.id))  # it notes its start next
        again = come_back(worker, task, older, 1)

    assert ran == [newer.id]
    assert again.stored == states.REVOKED
    assert f"{newer.id} runs instead" in str(again.result)


def test_call_without_a_result_backend_is_superseded_as_well(worker: Worker) -> None:
    """No result is kept, so none is looked for."""
    _, older = refused(worker, worker.buffered(ignore_result=True), 2, 1)

    assert (older.state, older.stored) == (states.IGNORED, states.PENDING)
    assert len(worker.published) == 1


def test_call_that_ends_in_another_way_withdraws(worker: Worker) -> None:
    """A callable skips a registered call: another one takes its place."""
    answers: list[Any] = [BufferOne(), Skip(), BufferOne()]
    task = worker.buffered(on_conflict=lambda _: answers.pop(0))

    with worker.held():
        newer = worker.run(task, 2, redlock=published(2))
        again = come_back(worker, task, newer, 2)
        older = worker.run(task, 1, redlock=published(1))

    assert (again.stored, older.stored) == (states.REVOKED, states.RETRY)


def test_unreachable_nodes_supersede_no_call(worker: Worker) -> None:
    """The nodes fail between refusal and register: the call waits, unregistered."""

    def cut_off(_: Conflict) -> str:
        worker.nodes.partition(0, 1)
        return "buffer_one"

    (run,) = refused(worker, worker.buffered(on_conflict=cut_off), 1)

    assert run.stored == states.RETRY
    assert "next" not in header(run, worker)


@pytest.mark.parametrize("deferred", [0, 3, 20, 5000])
def test_countdown_of_a_successor_doubles(worker: Worker, deferred: int) -> None:
    """It begins at a second and ends at half a ttl."""
    header = {**published(1), "deferred": deferred}
    began = datetime.now(timezone.utc)

    run = worker.refuse(worker.buffered(), 1, redlock=header)

    ended = datetime.now(timezone.utc)
    ((headers, _),) = worker.published
    eta = datetime.fromisoformat(headers["eta"])
    longest = timedelta(seconds=min(5.0, 2.0 ** min(deferred, 10)))  # the ttl is 10 s
    assert began + longest / 2 <= eta <= ended + longest
    assert run.stored == states.RETRY


def test_retry_countdown_is_the_countdown_of_a_successor(worker: Worker) -> None:
    """``buffer_one`` reads this option, too."""
    refused(worker, worker.buffered(retry_countdown=77), 1)

    ((headers, _),) = worker.published
    left = datetime.fromisoformat(headers["eta"]) - datetime.now(timezone.utc)
    assert timedelta(seconds=70) < left <= timedelta(seconds=77)


def test_decision_is_signalled_in_full(worker: Worker) -> None:
    """The signal carries the decision with the task's options filled in."""
    task = worker.buffered(buffer_keep="first", retry_countdown=5)

    with SignalRecorder("lock_conflict") as events:
        worker.refuse(task, 1)

    assert events.seen[0].decision == BufferOne("first", 5.0)


# -- the time of publishing ---------------------------------------------------------


def test_publisher_notes_the_time(worker: Worker) -> None:
    """The header has microseconds, which tell two calls apart."""
    task = worker.buffered()

    task.delay(1)
    task.delay(2)
    worker.collect()

    stamps = [headers["redlock"]["published"] for headers, _ in worker.published]
    assert stamps == sorted(set(stamps))


def test_publisher_notes_no_time_for_other_policies(worker: Worker) -> None:
    """Only policies with a successor register need it."""
    worker.buffered(on_conflict="skip").delay(1)
    worker.collect()

    ((headers, _),) = worker.published
    assert "redlock" not in (headers or {})


def test_retry_of_a_call_is_as_old_as_the_call(worker: Worker) -> None:
    """``self.retry()`` publishes old arguments under the time of the first call."""

    @worker.task(bind=True, on_conflict="buffer_one")
    def retrying(self: Any) -> None:
        raise self.retry(countdown=1)

    worker.run(retrying, redlock=published(1))

    ((headers, _),) = worker.published
    assert published(1).items() <= headers["redlock"].items()
