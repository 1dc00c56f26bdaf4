"""Each policy of ``on_conflict``, for a call that finds its lock taken."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import DuplicateTask
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.deployment import Deployment


def test_skip_ends_the_duplicate_as_revoked_and_names_the_holder(
    prefork: Deployment, key: str
) -> None:
    """A duplicate does not run; its result is final at once and names the holder."""
    first = prefork.begin("job", key)

    second = prefork.send("job", key)

    with pytest.raises(DuplicateTask, match=first.id):
        second.get(timeout=10)
    assert second.state == states.REVOKED
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert [run.task_id for run in prefork.stage.runs(key)] == [first.id]


def test_skip_leaves_the_lock_to_its_holder(prefork: Deployment, key: str) -> None:
    """However many duplicates come and go, the running call keeps its lock."""
    first = prefork.begin("job", key)
    tokens = prefork.nodes.tokens(key)

    for _ in range(8):
        with pytest.raises(DuplicateTask):
            prefork.send("job", key).get(timeout=10)

    assert prefork.nodes.tokens(key) == tokens
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert len(prefork.stage.runs(key)) == 1


def test_skip_calls_neither_links_nor_errbacks(prefork: Deployment, key: str) -> None:
    """A skipped call has neither succeeded nor failed: nothing follows it."""
    prefork.begin("job", key)
    tail = prefork.task("tail").s(f"{key}-linked")

    with pytest.raises(DuplicateTask):
        prefork.send("job", key, link=tail, link_error=tail).get(timeout=10)

    prefork.send("quick", f"{key}-later").get(timeout=10)  # would come after them
    assert prefork.stage.runs(f"{key}-linked-tail") == []


def test_skip_tells_monitors_that_the_task_was_revoked(
    deploy: Callable[..., Deployment], key: str
) -> None:
    """An event ends the skipped call in Flower, which otherwise shows it as started."""
    here = deploy(options=["--task-events"])
    events: list[str] = []
    receiver = here.app.events.Receiver(
        here.app.connection_for_read(),
        handlers={"task-revoked": lambda event: events.append(event["uuid"])},
    )
    with receiver.consumer_context() as (connection, _, _):
        here.begin("job", key)

        second = here.send("job", key)

        def is_told() -> bool:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
            return second.id in events

        until(is_told)


def test_raise_fails_the_duplicate_and_spares_the_worker(
    prefork: Deployment, key: str
) -> None:
    """The error survives the JSON result, and the worker runs the next call."""
    first = prefork.begin("job-raise", key)
    main = prefork.worker.container.pid

    second = prefork.send("job-raise", key)

    with pytest.raises(DuplicateTask, match=first.id):
        second.get(timeout=10)
    assert second.state == states.FAILURE
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert prefork.send("job-raise", key).get(timeout=10)
    assert prefork.worker.container.is_running
    assert prefork.worker.container.pid == main


def test_retry_runs_the_duplicate_later_beyond_max_retries(
    prefork: Deployment, key: str
) -> None:
    """Waiting for a lock is no failed attempt: a task with no retries left waits."""
    first = prefork.begin("job-retry", key)

    second = prefork.send("job-retry", key)

    until(lambda: second.state == states.RETRY)
    _until_refused_again(prefork, second.id)
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert second.get(timeout=10) == second.id
    assert prefork.stage.overlaps(key) == []
    assert len(prefork.stage.runs(key)) == 2


def _until_refused_again(deployment: Deployment, task_id: str, times: int = 2) -> None:
    received = f"[{task_id}] received"
    until(
        lambda: deployment.logs().count(received) > times,
        what=f"{task_id} to be published {times} times more",
    )


def test_wait_runs_the_duplicate_when_the_first_has_ended(
    prefork: Deployment, key: str
) -> None:
    """The duplicate keeps its worker process until the lock is free, and then runs."""
    first = prefork.begin("job-wait", key)

    second = prefork.send("job-wait", key)

    until(lambda: prefork.stage.notes(key, "signal-conflict"))
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert second.get(timeout=10) == second.id
    assert prefork.stage.overlaps(key) == []
    assert prefork.logs().count(f"[{second.id}] received") == 1


def test_wait_gives_up_after_its_timeout(prefork: Deployment, key: str) -> None:
    """A duplicate without the lock after ``wait_timeout`` is refused, not lost."""
    first = prefork.begin("job-wait-briefly", key)

    second = prefork.send("job-wait-briefly", key)

    with pytest.raises(DuplicateTask, match=first.id):
        second.get(timeout=10)
    assert len(prefork.stage.runs(key)) == 1


def test_allow_runs_the_duplicate_beside_the_first(
    prefork: Deployment, key: str
) -> None:
    """With ``allow`` the duplicate runs without the lock, and does not change it."""
    first = prefork.begin("job-allow", key)
    tokens = prefork.nodes.tokens(key)

    second = prefork.send("job-allow", key)

    prefork.until_running(key, first.id, second.id)
    assert prefork.nodes.tokens(key) == tokens
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert second.get(timeout=10) == second.id
    assert len(prefork.stage.overlaps(key)) == 1


def test_callable_decides_with_the_conflict_in_hand(
    prefork: Deployment, key: str
) -> None:
    """The function receives the holder of the lock, and its decision is applied."""
    first = prefork.begin("job-callable", key)

    second = prefork.send("job-callable", key)

    with pytest.raises(DuplicateTask):
        second.get(timeout=10)
    assert second.state == states.FAILURE
    noted = prefork.stage.notes(key, "conflict")
    assert [note["holder"] for note in noted] == [first.id]


def test_split_votes_are_never_a_reason_to_skip(prefork: Deployment, key: str) -> None:
    """Where no majority names a holder, the call tries again until it runs."""
    prefork.nodes.split(key, seconds=1.5)
    prefork.stage.open(key)

    result = prefork.send("job", key)

    assert result.get(timeout=20) == result.id
    assert len(prefork.stage.runs(key)) == 1


def test_contenders_for_a_free_lock_have_one_winner(
    prefork: Deployment, key: str
) -> None:
    """Of equal calls that start at once exactly one runs: never two, never none."""
    contend(prefork, key)


def test_contenders_on_a_bare_quorum_have_one_winner(
    frail: Deployment, key: str
) -> None:
    """One call wins also where every vote is needed and votes are often split."""
    with frail.nodes.minority_paused():
        contend(frail, key)


def contend(here: Deployment, key: str) -> None:
    """Publish four equal calls at once, in many rounds; each round has one winner."""
    for number in range(12):
        lock = f"{key}-{number}"
        results = [here.send("job", lock) for _ in range(4)]
        until(lambda: sum(result.ready() for result in results) == 3, 30)  # noqa: B023
        assert len(here.stage.running(lock)) == 1
        here.stage.open(lock)
        until(lambda: all(result.ready() for result in results))  # noqa: B023
        final = sorted(result.state for result in results)
        assert final == [states.REVOKED] * 3 + [states.SUCCESS]
        assert len(here.stage.runs(lock)) == 1


def test_tasks_with_one_key_text_exclude_each_other(
    prefork: Deployment, key: str
) -> None:
    """Two different tasks whose keys have the same text share the lock."""
    first = prefork.begin("job", key)

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send("quick", key).get(timeout=10)
