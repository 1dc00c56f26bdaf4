"""Refused calls start as soon as their lock is free, and not when a countdown ends.

A countdown of an hour shows that only a release can have started them.
"""

from __future__ import annotations

from celery import states
from celery.result import AsyncResult

from tests.harness.deployment import Deployment
from tests.harness.waiting import until

WITHIN = 20.0  # seconds


def refused(here: Deployment, name: str, key: str, *args: object) -> AsyncResult:
    """Publish a call, and wait until it lies in a worker with its countdown."""
    call = here.send(name, key, *args)
    here.until_received(call.id, 2)
    return call


def place_of(here: Deployment, call: AsyncResult) -> str | None:
    """Return "scheduled", "reserved" or "active"; None if no worker has the call."""
    answers = here.app.control.inspect().query_task(call.id) or {}
    places = [calls[call.id][0] for calls in answers.values() if call.id in calls]
    return places[0] if places else None


def test_release_starts_one_call_after_another(early: Deployment, key: str) -> None:
    """Each ends and starts the next one, all long before their countdowns end.

    Their order is best effort (a call whose votes are split is overtaken): that of the
    starts is in `tests/nodes/test_early_start.py`.
    """
    holder = early.begin("job", key)
    calls = [refused(early, "waiting", key, 0.0) for _ in range(4)]

    early.stage.open(key)

    assert [call.get(timeout=WITHIN) for call in calls] == [call.id for call in calls]
    first, *others = [run.task_id for run in early.stage.runs(key)]
    assert first == holder.id
    assert sorted(others) == sorted(call.id for call in calls)
    assert early.stage.most_at_once(key) == 1


def test_call_whose_lock_is_held_waits_on_in_memory(
    early: Deployment, key: str
) -> None:
    """Its countdown ends many times, and it is not published again."""
    holder = early.begin("job", key)
    call = refused(early, "waiting-often", key, 0.0)

    early.send("plain-clock", key, countdown=2).get(timeout=WITHIN)
    early.finish(key, holder)

    assert call.get(timeout=WITHIN) == call.id
    assert early.logs().count(f"[{call.id}] received") == 2


def test_revoked_call_lets_the_next_one_start(early: Deployment, key: str) -> None:
    """It is discarded when its turn comes."""
    holder = early.begin("job", key)
    revoked, call = (refused(early, "waiting", key, 0.0) for _ in range(2))
    early.app.control.revoke(revoked.id, reply=True)

    early.finish(key, holder)

    assert call.get(timeout=WITHIN) == call.id
    until(lambda: revoked.state == states.REVOKED, what="the end of the revoked call")


def test_call_that_is_revoked_while_the_pool_is_full_does_not_run(
    early: Deployment, key: str
) -> None:
    """Its lock is free, but it has no place in the pool yet.

    A revoke by a stamp stores no result, by which the call would know of it.
    """
    holder = early.begin("job", key)
    stamps = {"stamped_headers": ["batch"], "stamps": {"batch": key}}
    call = early.send("waiting-early", key, 0.0, headers=stamps)
    early.until_received(call.id, 2)
    for number in range(3):
        early.begin("job", f"{key}-{number}")
    last = early.send("job", f"{key}-last")
    early.until_received(last.id, 1)
    early.finish(key, holder)  # the last job takes its place
    until(lambda: place_of(early, call) == "reserved", what="the start of the call")

    early.app.control.revoke_by_stamped_headers({"batch": [key]}, reply=True)
    early.stage.open_all(key)

    assert last.get(timeout=WITHIN) == last.id
    until(lambda: place_of(early, call) is None, what="the end of the revoked call")
    assert [run.task_id for run in early.stage.runs(key)] == [holder.id]


def test_call_starts_after_a_kill_of_the_holder(prefork: Deployment, key: str) -> None:
    """The main process notices the end of the child, and releases the lock."""
    prefork.begin("job", key)
    call = refused(prefork, "waiting", key, 0.0)

    prefork.kill_child(key)

    assert call.get(timeout=WITHIN) == call.id
