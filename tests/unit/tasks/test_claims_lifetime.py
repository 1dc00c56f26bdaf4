"""The lifetime of a claim: its begin, its duration and its end."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from celery_redlock import singleton_task
from celery_redlock.core.records.claims import PENDING
from tests.unit.tasks.support import HOUR, JUST_NOW, claims, held, messages, unique_job

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

# -- at publish --------------------------------------------------------------------


def test_claim_is_pending_until_the_message_was_sent(
    app: Celery, nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a publisher dies before it sends, its claim ends after 10 s."""
    task, seen = unique_job(app), []
    send = app.send_task

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(claims(nodes))
        return send(*args, **options)

    monkeypatch.setattr(app, "send_task", watched)
    first = task.delay(0)

    assert seen == [{first.id: PENDING}]
    assert claims(nodes) == {first.id: HOUR}


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 100),
        ({"countdown": 50}, 150),
        ({"countdown": 50, "expires": 70}, 70),
        ({"expires": 300}, 100),
        ({"expires": 0.001}, 1),
    ],
)
def test_claim_lasts_as_long_as_its_job_may_wait(
    app: Celery, nodes: FakeNodes, options: dict[str, Any], seconds: float
) -> None:
    """A claim ends ``claim_ttl`` after its job may start, or at an earlier expiry."""
    task = unique_job(app, claim_ttl=100)

    first = task.apply_async((0,), **options)

    assert claims(nodes) == {first.id: pytest.approx(seconds)}


def test_claim_lasts_from_an_eta_to_an_instant_of_expiry(
    app: Celery, nodes: FakeNodes
) -> None:
    """Instants count like durations, with and without a time zone, also as text."""
    task = unique_job(app, claim_ttl=100)
    now = datetime.now(timezone.utc)

    for number, eta in enumerate([now + timedelta(seconds=50), now.isoformat()]):
        task.apply_async((number,), eta=eta)
    task.apply_async((2,), expires=now + timedelta(seconds=70))

    lasting = [*(claims(nodes, f"k:{number}") for number in range(3))]
    for found, seconds in zip(lasting, (150, 100, 70), strict=True):
        (left,) = found.values()
        assert seconds - JUST_NOW < left <= seconds


def test_claim_is_released_if_the_message_could_not_be_sent(
    app: Celery, nodes: FakeNodes
) -> None:
    """The claim is released, so the next call is published."""
    task = unique_job(app)

    with pytest.raises(Exception, match="no_such"):
        task.apply_async((0,), serializer="no_such")

    assert claims(nodes) == {}
    again = task.delay(0)
    assert messages(app) == [again.id]


def test_claim_that_ended_lets_another_call_in(app: Celery, nodes: FakeNodes) -> None:
    """Claims are best effort: a job that waits for longer has no claim any more."""
    task = unique_job(app, claim_ttl=60)
    first = task.delay(0)

    nodes.clock.sleep(60.01)
    second = task.delay(0)

    assert messages(app) == [first.id, second.id]


# -- in a worker -------------------------------------------------------------------


def test_claim_is_released_when_the_body_begins(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """The lock is held before the claim is released, so one of them shows the job."""
    seen: list[Any] = []

    @singleton_task(
        app=app, shared=False, name="seeing", key="k:0", unique_while="queued"
    )
    def seeing() -> None:
        seen.append((claims(nodes), list(claims(nodes, kind="lock"))))

    first = seeing.delay()
    assert list(claims(nodes)) == [first.id]
    worker.run(seeing, id=first.id)

    ((waiting, locked),) = seen
    assert waiting == {}
    assert len(locked) == 1


def test_job_without_a_claim_runs(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """A job whose claim ended while it waited still runs."""
    task = unique_job(app, claim_ttl=60)
    first = task.delay(0)
    nodes.clock.sleep(60.01)
    second = task.delay(0)

    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert list(claims(nodes)) == [second.id]
    assert worker.run(task, 0, id=second.id).stored == states.SUCCESS


@pytest.mark.parametrize(
    ("policy", "stored"), [("skip", states.REVOKED), ("raise", states.FAILURE)]
)
def test_claim_is_released_by_a_job_that_will_never_begin(  # noqa: PLR0913
    app: Celery,
    worker: Worker,
    nodes: FakeNodes,
    rival: Redlock,
    *,
    policy: str,
    stored: str,
) -> None:
    """A job that was skipped or refused does not wait any more."""
    task = unique_job(app, on_conflict=policy)
    first = task.delay(0)

    with held(rival, key="k:0"):
        run = worker.run(task, 0, id=first.id)

    assert run.stored == stored
    assert claims(nodes) == {}


def test_claim_is_kept_by_a_job_that_is_republished(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """The republished job waits again, and its claim lasts for the full time again."""
    task = unique_job(app, on_conflict="retry", retry_countdown=30, claim_ttl=60)
    first = task.delay(0)
    nodes.clock.sleep(50)

    with held(rival, key="k:0"):
        worker.run(task, 0, id=first.id)

    assert claims(nodes) == {first.id: pytest.approx(90)}
    assert task.delay(0).id == first.id
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert claims(nodes) == {}


def test_claim_is_kept_by_a_redelivered_job_that_is_republished(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """This run ends without a result; the republished job keeps its claim."""
    task = unique_job(app, on_conflict="retry", retry_countdown=30)
    first = task.delay(0)

    with held(rival, key="k:0"):
        run = worker.redeliver(task, 0, id=first.id)

    assert run.state == states.IGNORED
    assert claims(nodes) == {first.id: pytest.approx(HOUR + 30)}


# -- retries -----------------------------------------------------------------------


def retrying(app: Celery) -> Any:
    """Return a task that retries itself once."""

    @singleton_task(
        app=app, shared=False, name="again", key="k:0", bind=True, unique_while="queued"
    )
    def again(self: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=30)

    return again


def test_claim_is_taken_again_by_a_job_that_retries_itself(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """The retry waits in the queue, so another call is a duplicate of it."""
    task = retrying(app)
    first = task.delay()

    run = worker.run(task, id=first.id)

    assert run.stored == states.RETRY
    assert claims(nodes) == {first.id: pytest.approx(HOUR + 30)}
    assert task.delay().id == first.id
    worker.run(task, id=first.id, retries=1)
    assert claims(nodes) == {}


def test_retry_is_published_beside_a_waiting_job(
    app: Celery, worker: Worker, nodes: FakeNodes, call_id: str
) -> None:
    """A retry is never dropped for a claim; the waiting job keeps the claim."""
    task = retrying(app)
    waiting = task.delay()

    worker.run(task, id=call_id)

    assert [headers["id"] for headers, _ in worker.published] == [waiting.id, call_id]
    assert list(claims(nodes)) == [waiting.id]
