"""What is published, and what is not, by a task that is unique before it runs."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group, states
from celery.exceptions import Retry

from celery_redlock import DuplicateTask, singleton_task
from celery_redlock.claims import PENDING
from celery_redlock.core.lease import Holder
from celery_redlock.core.scripts import CLAIM
from celery_redlock.policies import (
    BufferOne,
    CancelRunning,
    Conflict,
    Raise,
    Skip,
    Wait,
)
from celery_redlock.runtime import runtime_of
from celery_redlock.testing import SignalRecorder
from tests.unit.core.support import args_of, asked

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes
    from tests.unit.tasks.support import Worker

HOUR = 3600.0
JUST_NOW = 2.0  # seconds that a slow machine may take for a few lines


def singleton(app: Celery, while_: str = "queued", **options: Any) -> Any:
    """Return a task that is unique while it waits."""

    @singleton_task(
        app=app, shared=False, name="job", key="k:{n}", unique_while=while_, **options
    )
    def job(n: int = 0) -> int:
        return n

    return job


def messages(app: Celery) -> list[str]:
    """Return the ids of what came to the queue, in order, and take it out."""
    ids = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.conf.task_default_queue)
        while queue.qsize():
            message = queue.get(block=False)
            message.ack()
            ids.append(message.headers["id"])
        queue.close()
    return ids


def claims(nodes: FakeNodes, key: str = "k:0", kind: str = "claim") -> dict[str, float]:
    """Return each job that has the claim, on whichever node, and for how long."""
    name, found = f"redlock:{kind}:{key}".encode(), {}
    for node in nodes.nodes:
        redis = node.memory.redis
        redis.look_at_clock()
        value = redis.get(name)
        if value is not None:
            found[value.split(b"\n")[0].decode()] = redis.pttl(name) / 1000
    return found


# -- at publish ----------------------------------------------------------------------


def test_second_call_is_the_first_one_while_that_waits(
    app: Celery, nodes: FakeNodes
) -> None:
    """It is not published; who calls gets the result of the one that is."""
    task = singleton(app)

    first = task.delay(0)
    second = task.apply_async((), {"n": 0}, countdown=5)

    assert first.conflict is None
    assert second.id == first.id
    assert isinstance(second.conflict, Conflict)
    assert str(second.conflict.holder).startswith(f"job[{first.id}] on ")
    assert second.conflict.phase == "queued"
    assert second.conflict.stage == "publish"
    assert messages(app) == [first.id]
    assert list(claims(nodes)) == [first.id]


def test_call_with_other_arguments_is_another_one(app: Celery) -> None:
    """Claims are by key, as locks are."""
    task = singleton(app)

    first, second = task.delay(1), task.delay(2)

    assert messages(app) == [first.id, second.id]


def test_call_by_which_a_task_is_unique_while_running_claims_nothing(
    app: Celery, nodes: FakeNodes
) -> None:
    """Nobody pays for what they did not ask for: the nodes hear nothing."""
    task = singleton(app, "running")

    assert len({task.delay(0).id, task.delay(0).id}) == 2
    assert asked(nodes) == []


def test_publishing_waits_for_one_round_trip(app: Celery, nodes: FakeNodes) -> None:
    """The claim is asked for; that it shall last is only told."""
    task = singleton(app)
    nodes.latency(0.01)
    began = nodes.clock.monotonic()

    task.delay(0)

    assert asked(nodes) == ["claim", "keep_claim"]
    assert nodes.clock.monotonic() - began == pytest.approx(0.01)


def test_claim_is_pending_until_the_message_was_sent(
    app: Celery, nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that dies in between keeps others out for 10 s and no longer."""
    task, seen = singleton(app), []
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
    """``claim_ttl`` beyond the instant at which it may run, unless it expires."""
    task = singleton(app, claim_ttl=100)

    first = task.apply_async((0,), **options)

    assert claims(nodes) == {first.id: pytest.approx(seconds)}


def test_claim_lasts_from_an_eta_to_an_instant_of_expiry(
    app: Celery, nodes: FakeNodes
) -> None:
    """Instants count like durations, with and without a time zone, also as text."""
    task = singleton(app, claim_ttl=100)
    now = datetime.now(timezone.utc)

    for number, eta in enumerate([now + timedelta(seconds=50), now.isoformat()]):
        task.apply_async((number,), eta=eta)
    task.apply_async((2,), expires=now + timedelta(seconds=70))

    lasting = [*(claims(nodes, f"k:{number}") for number in range(3))]
    for found, seconds in zip(lasting, (150, 100, 70), strict=True):
        (left,) = found.values()
        assert seconds - JUST_NOW < left <= seconds


def test_claim_is_given_back_if_the_message_could_not_be_sent(
    app: Celery, nodes: FakeNodes
) -> None:
    """The next call is no duplicate of one that came to nothing."""
    task = singleton(app)

    with pytest.raises(Exception, match="no_such"):
        task.apply_async((0,), serializer="no_such")

    assert claims(nodes) == {}
    again = task.delay(0)
    assert messages(app) == [again.id]


def test_call_that_does_not_fit_claims_nothing(app: Celery, nodes: FakeNodes) -> None:
    """Celery's own check of the arguments comes before anything is sent."""
    task = singleton(app)

    with pytest.raises(Exception, match="argument"):
        task.delay(0, 1, 2)

    assert claims(nodes) == {}


def test_claim_that_ended_lets_another_call_in(app: Celery, nodes: FakeNodes) -> None:
    """It is best effort: what waits for longer than was said is not looked for."""
    task = singleton(app, claim_ttl=60)
    first = task.delay(0)

    nodes.clock.sleep(60.01)
    second = task.delay(0)

    assert messages(app) == [first.id, second.id]


@pytest.mark.parametrize("cut", [[0], [1], [2]])
def test_claim_needs_a_majority_only(
    app: Celery, nodes: FakeNodes, cut: list[int]
) -> None:
    """One node of three may be away, before and after."""
    task = singleton(app)
    nodes.partition(*cut)

    first, second = task.delay(0), task.delay(0)

    assert second.id == first.id
    assert messages(app) == [first.id]


def test_call_is_published_if_the_nodes_do_not_answer(
    app: Celery, nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not for a claim to stop a job: it is said, and nothing is left behind."""
    task = singleton(app)
    nodes.partition(0, 1)

    with caplog.at_level(logging.WARNING):
        first, second = task.delay(0), task.delay(0)

    assert messages(app) == [first.id, second.id]
    assert (first.conflict, second.conflict) == (None, None)
    assert "is published without a claim" in caplog.text
    nodes.heal()
    assert claims(nodes) == {}


def test_split_claims_are_tried_again(app: Celery, nodes: FakeNodes) -> None:
    """Of several who publish at once one has the claim in the end."""
    task = singleton(app)
    for number, node in enumerate(nodes.nodes):
        other = f"other-{number}\n0\njob\nother-{number}\nhost\n1\n0\nqueued".encode()
        node.memory.redis.set(b"redlock:claim:k:0", other, px=5)

    first = task.delay(0)

    assert list(claims(nodes)) == [first.id]
    assert messages(app) == [first.id]


def test_split_claims_that_stay_split_stop_nobody(
    app: Celery, nodes: FakeNodes
) -> None:
    """After a few tries it is published without."""
    task = singleton(app)
    for number, node in enumerate(nodes.nodes):
        other = f"other-{number}\n0\njob\nother-{number}\nhost\n1\n0\nqueued".encode()
        node.memory.redis.set(b"redlock:claim:k:0", other, px=60_000)

    first = task.delay(0)

    assert messages(app) == [first.id]
    assert len(args_of(nodes, CLAIM.name)) == 5


# -- policies ------------------------------------------------------------------------


def test_raise_names_the_job_that_is_here(app: Celery) -> None:
    """Who calls is told by an error, with the holder's id."""
    task = singleton(app, on_conflict="raise")
    first = task.delay(0)

    with pytest.raises(DuplicateTask, match=first.id) as refusal:
        task.delay(0)

    assert refusal.value.holder is not None
    assert refusal.value.holder.task_id == first.id
    assert refusal.value.key == "k:0"
    assert refusal.value.retry_after == pytest.approx(HOUR)
    assert "waits in the queue" in str(refusal.value)
    assert messages(app) == [first.id]


def test_allow_publishes_and_says_what_would_be_refused(app: Celery) -> None:
    """The claim stays with the first."""
    task = singleton(app, on_conflict="allow")
    first = task.delay(0)

    with SignalRecorder("publish_deduplicated") as events:
        second = task.delay(0)

    assert messages(app) == [first.id, second.id]
    assert second.conflict.holder.task_id == first.id
    assert second.conflict.task_id == second.id
    assert events.names == ["publish_deduplicated"]


def test_each_stage_has_its_policy(app: Celery, worker: Worker, rival: Redlock) -> None:
    """``{"publish": "raise", "execute": "retry"}`` raises here and retries there."""
    task = singleton(app, on_conflict={"publish": "raise", "execute": "retry"})
    first = task.delay(0)
    with pytest.raises(DuplicateTask):
        task.delay(0)

    lease = rival.acquire("k:0", facts=Holder.here(task="job", task_id="other"))
    run = worker.run(task, 0, id=first.id)
    rival.release(lease)

    assert run.stored == states.RETRY


def test_callable_is_asked_with_the_conflict(app: Celery) -> None:
    """It sees the arguments and who is here, and is obeyed."""
    asked_with: list[Conflict] = []

    def decide(conflict: Conflict) -> Skip | Raise:
        asked_with.append(conflict)
        return Raise()

    task = singleton(app, on_conflict={"publish": decide})
    first = task.delay(0)

    with pytest.raises(DuplicateTask):
        task.delay(0)

    (conflict,) = asked_with
    assert conflict.holder is not None
    assert (conflict.args, conflict.holder.task_id) == ((0,), first.id)


def test_duplicate_is_logged_and_signalled(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the key, the job that is here, and the policy; no arguments."""
    task = singleton(app)
    first = task.delay(0)

    with caplog.at_level(logging.INFO), SignalRecorder() as events:
        task.delay(0)

    (event,) = events.of("publish_deduplicated")
    assert (event.conflict.holder.task_id, event.decision) == (first.id, Skip())
    assert event.sender.name == task.name
    assert f"job[{first.id}], the same call 'k:0', waits in the queue" in caplog.text


# -- what is always published ---------------------------------------------------------


def test_canvas_is_always_published(app: Celery, nodes: FakeNodes) -> None:
    """Its ids are known to others already; who waits for them would wait for ever."""
    task = singleton(app)
    first = task.delay(0)

    group(task.s(0), task.s(0)).apply_async()
    chain(task.si(0), task.si(0)).apply_async()
    chord([task.s(0)], task.si(0)).apply_async()
    task.apply_async((0,), link=task.si(1))
    task.apply_async((0,), link_error=task.si(1))
    task.apply_async((0,), task_id="chosen")
    task.apply_async((0,), {}, "by position")

    ids = messages(app)
    assert len(ids) == 9
    assert ids[0] == first.id
    assert ids[-2:] == ["chosen", "by position"]
    assert list(claims(nodes)) == [first.id]


def test_callback_is_always_published(app: Celery, worker: Worker) -> None:
    """An error at this point would fail the task that it follows."""
    task = singleton(app, on_conflict="raise")
    first = task.delay(1)

    run = worker.run(task, 0, callbacks=[task.si(1)])

    assert run.stored == states.SUCCESS
    assert len(worker.published) == 2
    assert worker.published[0][0]["id"] == first.id


def test_signature_of_a_single_call_is_a_plain_call(app: Celery) -> None:
    """``task.s(0).delay()`` is ``task.delay(0)``."""
    task = singleton(app)

    first, second = task.s(0).delay(), task.s(0).apply_async(countdown=3)

    assert second.id == first.id


def test_call_by_name_is_not_asked_about(app: Celery, nodes: FakeNodes) -> None:
    """Celery does not come by our way; the worker deduplicates."""
    task = singleton(app)

    ids = [app.send_task(task.name, (0,)).id for _ in range(2)]

    assert messages(app) == ids
    assert claims(nodes) == {}


def test_eager_call_claims_nothing(app: Celery, nodes: FakeNodes) -> None:
    """It never waits."""
    app.conf.task_always_eager = True
    task = singleton(app)

    assert task.delay(3).get() == 3
    assert asked(nodes) == []


# -- queued, queued_or_running, unique_for ---------------------------------------------


def test_queued_lets_one_wait_beside_one_that_runs(app: Celery, rival: Redlock) -> None:
    """A lock is not in the way, whoever holds it."""
    task = singleton(app)
    rival.acquire("k:0", facts=Holder.here(task="job", task_id="running"))

    first, second = task.delay(0), task.delay(0)

    assert second.id == first.id != "running"
    assert messages(app) == [first.id]


def test_queued_or_running_is_the_job_that_runs(app: Celery, rival: Redlock) -> None:
    """Also one that was sent by name, or runs for longer than any claim lasts."""
    task = singleton(app, "queued_or_running")
    lease = rival.acquire("k:0", facts=Holder.here(task="job", task_id="running"))

    first = task.delay(0)

    assert first.id == "running"
    assert first.conflict.phase == "running"
    assert messages(app) == []
    rival.release(lease)
    again = task.delay(0)
    assert messages(app) == [again.id]


def test_lock_taken_outside_of_a_task_is_no_job(app: Celery, rival: Redlock) -> None:
    """There is no result to give; the worker finds the lock held, if it still is."""
    task = singleton(app, "queued_or_running")
    rival.acquire("k:0", facts=Holder.here())

    first = task.delay(0)

    assert (messages(app), first.conflict) == ([first.id], None)


def test_cool_down_gives_the_job_that_succeeded(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """For so many seconds its result is the answer to the same call."""
    task = singleton(app, "running", unique_for=60)
    first = task.delay(0)
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS

    second = task.delay(0)

    assert second.id == first.id
    assert second.get(timeout=1) == 0
    assert second.conflict.phase == "succeeded"
    assert second.conflict.retry_after == pytest.approx(60)
    nodes.clock.sleep(60.01)
    assert task.delay(0).id != first.id
    assert claims(nodes) == {}


# -- in a worker ----------------------------------------------------------------------


def test_claim_is_given_back_when_the_body_begins(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """Under the lock, so that there is no moment at which nothing shows the job."""
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
    """A claim that ended while its job waited is no reason not to run it."""
    task = singleton(app, claim_ttl=60)
    first = task.delay(0)
    nodes.clock.sleep(60.01)
    second = task.delay(0)

    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert list(claims(nodes)) == [second.id]
    assert worker.run(task, 0, id=second.id).stored == states.SUCCESS


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_claim_is_given_back_by_a_job_that_will_never_begin(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock, policy: str
) -> None:
    """Skipped or refused, it does not wait any more."""
    lease = rival.acquire("k:0", facts=Holder.here(task="job", task_id="other"))
    task = singleton(app, on_conflict=policy)
    first = task.delay(0)

    run = worker.run(task, 0, id=first.id)
    rival.release(lease)

    assert run.stored in (states.REVOKED, states.FAILURE)
    assert claims(nodes) == {}


def test_claim_is_kept_by_a_job_that_is_put_back(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """It waits again; the claim is its own and lasts anew."""
    task = singleton(app, on_conflict="retry", retry_countdown=30, claim_ttl=60)
    first = task.delay(0)
    nodes.clock.sleep(50)
    lease = rival.acquire("k:0", facts=Holder.here(task="job", task_id="other"))

    worker.run(task, 0, id=first.id)
    rival.release(lease)

    assert claims(nodes) == {first.id: pytest.approx(90)}
    assert task.delay(0).id == first.id
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert claims(nodes) == {}


def test_claim_is_kept_by_a_redelivered_job_that_is_put_back(
    app: Celery, worker: Worker, nodes: FakeNodes, rival: Redlock
) -> None:
    """Its copy ends without a result, and it waits like any other."""
    task = singleton(app, on_conflict="retry", retry_countdown=30)
    first = task.delay(0)
    lease = rival.acquire("k:0", facts=Holder.here(task="job", task_id="other"))

    run = worker.redeliver(task, 0, id=first.id)
    rival.release(lease)

    assert run.state == states.IGNORED
    assert claims(nodes) == {first.id: pytest.approx(HOUR + 30)}


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
    """It waits once more, and one that waits is enough."""
    task = retrying(app)
    first = task.delay()

    run = worker.run(task, id=first.id)

    assert isinstance(run.result, (Retry, type(None))) or run.stored == states.RETRY
    assert claims(nodes) == {first.id: pytest.approx(HOUR + 30)}
    assert task.delay().id == first.id
    worker.run(task, id=first.id, retries=1)
    assert claims(nodes) == {}


def test_retry_is_published_whoever_waits_already(
    app: Celery, worker: Worker, nodes: FakeNodes, call_id: str
) -> None:
    """A job is never dropped for a claim: that stays with the one that has it."""
    task = retrying(app)
    waiting = task.delay()

    worker.run(task, id=call_id)

    assert [headers["id"] for headers, _ in worker.published] == [waiting.id, call_id]
    assert list(claims(nodes)) == [waiting.id]


# -- cool-down in a worker ------------------------------------------------------------


def test_call_that_comes_to_a_worker_in_the_cool_down_is_skipped(
    app: Celery, worker: Worker, nodes: FakeNodes, call_id: str
) -> None:
    """What nobody could refuse at publish is deduplicated at run time."""
    task = singleton(app, "running", unique_for=60)
    worker.run(task, 0, id=call_id)

    run = worker.run(task, 0)

    assert (run.state, run.stored) == (states.IGNORED, states.REVOKED)
    assert isinstance(run.result, DuplicateTask)
    assert call_id in str(run.result)
    assert claims(nodes, kind="lock") == {}
    nodes.clock.sleep(60.01)
    assert worker.run(task, 0).stored == states.SUCCESS


def test_cool_down_begins_with_success_only(
    app: Celery, worker: Worker, nodes: FakeNodes
) -> None:
    """What failed may be tried again at once."""

    @singleton_task(app=app, shared=False, name="failing", key="k:0", unique_for=60)
    def failing() -> None:
        raise ValueError

    for _ in range(2):
        assert worker.run(failing).stored == states.FAILURE
    assert claims(nodes, kind="cooldown") == {}


def test_retry_in_the_cool_down_is_put_back_to_its_end(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """So each call runs, and no two within the cool-down."""
    task = singleton(app, "running", unique_for=60, on_conflict="retry")
    worker.run(task, 0, id=call_id)
    began = datetime.now(timezone.utc)

    run = worker.run(task, 0)

    assert run.stored == states.RETRY
    headers, _ = worker.published[-1]
    delay = (datetime.fromisoformat(headers["eta"]) - began).total_seconds()
    assert 59 < delay < 66 + JUST_NOW


def test_allow_in_the_cool_down_runs_under_the_lock(
    app: Celery, worker: Worker, nodes: FakeNodes, call_id: str
) -> None:
    """Nobody else runs, so there is a lock to run under."""
    task = singleton(app, "running", unique_for=60, on_conflict="allow")
    worker.run(task, 0, id=call_id)

    with SignalRecorder("lock_conflict", "lock_acquired") as events:
        run = worker.run(task, 0)

    assert run.stored == states.SUCCESS
    assert events.names == ["lock_acquired", "lock_conflict"]
    assert events.of("lock_conflict")[0].conflict.phase == "succeeded"
    assert list(claims(nodes, kind="cooldown")) == [run.id]


@pytest.mark.parametrize(
    ("decision", "state"),
    [(CancelRunning(), states.SUCCESS), (BufferOne(), states.RETRY)],
)
def test_callable_that_wants_to_replace_or_to_follow_in_the_cool_down(
    app: Celery, worker: Worker, call_id: str, decision: Any, state: str
) -> None:
    """There is nobody to wait for: it runs, or it runs when the cool-down is over."""
    task = singleton(app, "running", unique_for=60, on_conflict=lambda _: decision)
    worker.run(task, 0, id=call_id)

    assert worker.run(task, 0).stored == state


def test_callable_that_waits_in_the_cool_down_waits_without_the_lock(
    app: Celery, worker: Worker, nodes: FakeNodes, call_id: str
) -> None:
    """It is asked again after its time, until the cool-down is over."""
    waited = []

    def wait(conflict: Conflict) -> Wait:
        waited.append(conflict.waited)
        nodes.clock.sleep(5)  # the time that is slept is the machine's
        return Wait(0.01)

    task = singleton(app, "running", unique_for=12, on_conflict=wait)
    worker.run(task, 0, id=call_id)

    assert worker.run(task, 0).stored == states.SUCCESS
    assert len(waited) == 3
    assert runtime_of(app).redlock.inspect("k:0").holder is None


def test_own_cool_down_is_no_reason_to_skip(
    app: Celery, worker: Worker, call_id: str
) -> None:
    """A message that is delivered again where no result is kept runs again."""
    task = singleton(app, "running", unique_for=60, ignore_result=True)

    for _ in range(2):
        assert worker.run(task, 0, id=call_id).state == states.SUCCESS
