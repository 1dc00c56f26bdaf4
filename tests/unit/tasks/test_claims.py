"""Calls that are unique while they wait (claims), or after a success (cool-downs)."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord, group, states
from celery.signals import beat_init
from kombu.exceptions import OperationalError

from celery_redlock import DuplicateTask, QuorumUnreachable
from celery_redlock.app.runtime import runtime_of
from celery_redlock.line.claims import PENDING
from celery_redlock.locks.lease import Holder
from celery_redlock.policies import (
    Conflict,
    Raise,
    Skip,
    Wait,
)
from celery_redlock.scripts import CLAIM, RELEASE_CLAIM
from celery_redlock.testing import FakeNodes, SignalRecorder
from tests.unit.lock.support import args_of, asked
from tests.unit.tasks.support import HOUR, LONG, Worker


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log lines of the package.

    kombu says once in each process that the broker in memory has no host.
    """
    return [one for one in caplog.records if one.name.startswith("celery_redlock")]


# -- a job that waits --------------------------------------------------------------


def test_second_call_is_the_first_one_while_that_waits(worker: Worker) -> None:
    """The second call is not published; its caller gets the first one's result."""
    task = worker.unique_job()

    first = task.delay(0)
    second = task.apply_async((), {"n": 0}, countdown=5)

    assert first.conflict is None
    assert second.id == first.id
    assert isinstance(second.conflict, Conflict)
    assert str(second.conflict.holder).startswith(f"job[{first.id}] on ")
    assert second.conflict.phase == "queued"
    assert second.conflict.stage == "publish"
    assert worker.messages() == [first.id]
    assert list(worker.claims()) == [first.id]


def test_get_does_not_wait_for_a_result_that_is_ignored(worker: Worker) -> None:
    """A duplicate's result is the result of the first call, which is not stored."""
    job = worker.unique_job(ignore_result=True)

    first, again = job.delay(), job.delay()

    assert again.id == first.id
    assert first.get(timeout=LONG) is again.get(timeout=LONG) is None
    assert not job.apply_async((0,), ignore_result=False).ignored


def test_task_that_is_unique_while_running_claims_nothing(worker: Worker) -> None:
    """With ``unique_while="running"`` a publisher sends the nodes no request."""
    task = worker.unique_job("running")

    assert len({task.delay(0).id, task.delay(0).id}) == 2
    assert asked(worker.nodes) == []


def test_call_that_does_not_fit_claims_nothing(worker: Worker) -> None:
    """Celery checks the arguments before a claim is taken."""
    with pytest.raises(TypeError, match="argument"):
        worker.unique_job().delay(0, 1, 2)

    assert worker.claims() == {}


def test_signature_of_a_single_call_is_a_plain_call(worker: Worker) -> None:
    """``task.s(0).delay()`` is ``task.delay(0)``."""
    task = worker.unique_job()

    first, second = task.s(0).delay(), task.s(0).apply_async(countdown=3)

    assert second.id == first.id


# -- queued, or running ------------------------------------------------------------


def test_queued_lets_one_wait_beside_one_that_runs(worker: Worker) -> None:
    """With ``queued`` a held lock does not make a call a duplicate."""
    task = worker.unique_job()

    with worker.held("running", key="k:0"):
        first, second = task.delay(0), task.delay(0)

    assert second.id == first.id != "running"
    assert worker.messages() == [first.id]


def test_queued_or_running_is_the_job_that_runs(worker: Worker) -> None:
    """The lock shows a running job, also one sent by name or one without a claim."""
    task = worker.unique_job("queued_or_running")

    with worker.held("running", key="k:0"):
        first = task.delay(0)

    assert first.id == "running"
    assert first.conflict.phase == "running"
    assert worker.messages() == []
    again = task.delay(0)
    assert worker.messages() == [again.id]


def test_lock_taken_outside_of_a_task_is_no_job(worker: Worker) -> None:
    """Such a lock has no result to return; a worker checks the lock later."""
    worker.rival.acquire("k:0", holder=Holder.here())

    first = worker.unique_job("queued_or_running").delay(0)

    assert (worker.messages(), first.conflict) == ([first.id], None)


# -- calls that are always published -----------------------------------------------


def test_canvas_is_always_published(worker: Worker) -> None:
    """Other calls know its task ids already, and would wait for them for ever."""
    task = worker.unique_job()
    first = task.delay(0)

    group(task.s(0), task.s(0)).apply_async()
    chain(task.si(0), task.si(0)).apply_async()
    chord([task.s(0)], task.si(0)).apply_async()
    task.apply_async((0,), link=task.si(1))
    task.apply_async((0,), link_error=task.si(1))
    task.apply_async((0,), task_id="chosen")
    task.apply_async((0,), {}, "by position")

    ids = worker.messages()
    assert len(ids) == 9
    assert ids[0] == first.id
    assert ids[-2:] == ["chosen", "by position"]
    assert list(worker.claims()) == [first.id]


def test_callback_is_always_published(worker: Worker) -> None:
    """An error while a callback is published would fail the task before it."""
    task = worker.unique_job(on_conflict="raise")
    first = task.delay(1)

    run = worker.run(task, 0, callbacks=[task.si(1)])

    assert run.stored == states.SUCCESS
    assert len(worker.published) == 2
    assert worker.published[0][0]["id"] == first.id


def test_call_by_name_is_not_asked_about(worker: Worker) -> None:
    """``send_task`` does not use the task class; the worker deduplicates."""
    task = worker.unique_job()

    ids = [worker.app.send_task(task.name, (0,)).id for _ in range(2)]

    assert worker.messages() == ids
    assert worker.claims() == {}


def test_eager_call_claims_nothing(worker: Worker) -> None:
    """An eager call never waits in a queue."""
    worker.app.conf.task_always_eager = True

    assert worker.unique_job().delay(3).get() == 3
    assert asked(worker.nodes) == []


@pytest.mark.parametrize("while_", ["running", "queued"])
def test_each_result_says_whether_there_was_a_conflict(
    worker: Worker, while_: str
) -> None:
    """``result.conflict`` is there, however the call is sent: None without one."""
    task = worker.unique_job(while_)
    sent = [
        task.delay(1),
        task.s(2).apply_async(countdown=1),
        task.apply_async((3,), task_id=worker.call_id),
        task.apply_async((4,), link=task.si(5)),
    ]
    chained = chain(task.s(6), task.si(7)).apply_async()
    sent += [chained, chained.parent, *group(task.s(8), task.s(9)).apply_async()]
    worker.app.conf.task_always_eager = True
    sent += [task.delay(10), task.apply_async((11,), task_id="eager")]
    sent += [task.apply((12,))]
    sent += [chain(task.s(13), task.si(14)).apply_async()]

    assert [result.conflict for result in sent] == [None] * len(sent)


# -- policies of the publisher -----------------------------------------------------


def test_raise_names_the_job_that_is_here(worker: Worker) -> None:
    """The caller gets an error with the holder's id."""
    task = worker.unique_job(on_conflict="raise")
    first = task.delay(0)

    with pytest.raises(DuplicateTask, match=first.id) as refusal:
        task.delay(0)

    assert refusal.value.holder is not None
    assert refusal.value.holder.task_id == first.id
    assert refusal.value.key == "k:0"
    assert refusal.value.retry_after == pytest.approx(HOUR)
    assert "waits in the queue" in str(refusal.value)
    assert worker.messages() == [first.id]


def test_beat_gets_no_error_for_a_duplicate(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """It would log one as an error with two tracebacks, at each tick."""
    task = worker.unique_job(on_conflict="raise")
    first = task.delay(0)
    ticks: list[Any] = []

    def tick() -> None:
        beat_init.send(sender=worker)
        ticks.append(task.delay(0))

    with caplog.at_level(logging.INFO, "celery_redlock"):
        thread = threading.Thread(target=tick)
        thread.start()
        thread.join()

    assert [tick.id for tick in ticks] == [first.id]
    (line,) = ours(caplog)
    assert line.levelno == logging.INFO
    with pytest.raises(DuplicateTask):
        task.delay(0)


def test_allow_publishes_and_signals_the_duplicate(worker: Worker) -> None:
    """The first call keeps the claim."""
    task = worker.unique_job(on_conflict="allow")
    first = task.delay(0)

    with SignalRecorder("publish_deduplicated") as events:
        second = task.delay(0)

    assert worker.messages() == [first.id, second.id]
    assert second.conflict.holder.task_id == first.id
    assert second.conflict.task_id == second.id
    assert events.names == ["publish_deduplicated"]


def test_callable_is_asked_with_the_conflict(worker: Worker) -> None:
    """It gets the arguments and the holder, and its decision is performed."""
    asked_with: list[Conflict] = []

    def decide(conflict: Conflict) -> Skip | Raise:
        asked_with.append(conflict)
        return Raise()

    task = worker.unique_job(on_conflict={"publish": decide})
    first = task.delay(0)

    with pytest.raises(DuplicateTask):
        task.delay(0)

    (conflict,) = asked_with
    assert conflict.holder is not None
    assert (conflict.args, conflict.holder.task_id) == ((0,), first.id)


def test_duplicate_is_logged_and_signalled(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the key and the existing job, but no arguments."""
    task = worker.unique_job()
    first = task.delay(0)

    with caplog.at_level(logging.INFO), SignalRecorder() as events:
        task.delay(0)

    (event,) = events.of("publish_deduplicated")
    assert (event.conflict.holder.task_id, event.decision) == (first.id, Skip())
    assert event.sender.name == task.name
    assert (
        f"The same call 'k:0' waits in the queue as job[{first.id}], for 3600.0 s more "
        "at most, as 3 of 3 nodes say." in caplog.text
    )


# -- the lifetime of a claim -------------------------------------------------------


def test_claim_is_pending_until_the_message_was_sent(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a publisher dies before it sends, its claim ends after 10 s."""
    seen, send = [], worker.app.send_task

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(worker.claims())
        return send(*args, **options)

    monkeypatch.setattr(worker.app, "send_task", watched)
    first = worker.unique_job().delay(0)

    assert seen == [{first.id: PENDING}]
    assert worker.claims() == {first.id: HOUR}


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
    worker: Worker, options: dict[str, Any], seconds: float
) -> None:
    """A claim ends ``claim_ttl`` after its job may start, or at an earlier expiry."""
    first = worker.unique_job(claim_ttl=100).apply_async((0,), **options)

    assert worker.claims() == {first.id: pytest.approx(seconds)}


@pytest.mark.parametrize(
    ("option", "later", "as_text", "seconds"),
    [("eta", 50, False, 150), ("eta", 0, True, 100), ("expires", 70, False, 70)],
)
def test_claim_lasts_from_an_eta_to_an_instant_of_expiry(
    worker: Worker, option: str, later: float, *, as_text: bool, seconds: float
) -> None:
    """Instants count like durations, with and without a time zone, also as text."""
    instant = datetime.now(timezone.utc) + timedelta(seconds=later)
    options = {option: instant.isoformat() if as_text else instant}

    worker.unique_job(claim_ttl=100).apply_async((0,), **options)

    (left,) = worker.claims().values()
    took = datetime.now(timezone.utc) + timedelta(seconds=later) - instant
    assert seconds - took.total_seconds() - 0.001 <= left <= seconds


@pytest.mark.parametrize("wrong", [{"serializer": "no_such"}, {"headers": 3}])
def test_claim_is_released_if_the_message_could_not_be_sent(
    worker: Worker, wrong: dict[str, Any]
) -> None:
    """The claim is released, so the next call is published."""
    task = worker.unique_job()

    with pytest.raises(Exception, match=r"no_such|int"):
        task.apply_async((0,), **wrong)

    assert worker.claims() == {}
    again = task.delay(0)
    assert worker.messages() == [again.id]


# -- in a worker -------------------------------------------------------------------


def test_claim_is_released_when_the_body_begins(worker: Worker) -> None:
    """The lock is held before the claim is released, so one of them shows the job."""
    seen: list[Any] = []

    @worker.task(key="k:0", unique_while="queued")
    def seeing() -> None:
        seen.append((worker.claims(), list(worker.claims(kind="lock"))))

    first = seeing.delay()
    assert list(worker.claims()) == [first.id]
    worker.run(seeing, id=first.id)

    ((waiting, locked),) = seen
    assert waiting == {}
    assert len(locked) == 1


def test_job_without_a_claim_runs(worker: Worker) -> None:
    """A job whose claim ended while it waited still runs, and lets another call in."""
    task = worker.unique_job(claim_ttl=60)
    first = task.delay(0)
    worker.nodes.clock.sleep(60.01)
    second = task.delay(0)

    assert worker.messages() == [first.id, second.id]
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert list(worker.claims()) == [second.id]
    assert worker.run(task, 0, id=second.id).stored == states.SUCCESS


@pytest.mark.parametrize(
    ("policy", "stored"), [("skip", states.REVOKED), ("raise", states.FAILURE)]
)
def test_claim_is_released_by_a_job_that_will_never_begin(
    worker: Worker, policy: str, stored: str
) -> None:
    """A job that was skipped or refused does not wait any more."""
    task = worker.unique_job(on_conflict=policy)
    first = task.delay(0)

    with worker.held(key="k:0"):
        run = worker.run(task, 0, id=first.id)

    assert run.stored == stored
    assert worker.claims() == {}


def test_claim_is_kept_by_a_job_that_is_republished(worker: Worker) -> None:
    """The republished job waits again, and its claim lasts for the full time again."""
    task = worker.unique_job(on_conflict="retry", retry_countdown=30, claim_ttl=60)
    first = task.delay(0)
    worker.nodes.clock.sleep(50)

    with worker.held(key="k:0"):
        worker.run(task, 0, id=first.id)

    assert worker.claims() == {first.id: pytest.approx(90)}
    assert task.delay(0).id == first.id
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert worker.claims() == {}


def test_claim_is_kept_by_a_redelivered_job_that_is_republished(worker: Worker) -> None:
    """This run ends without a result; the republished job keeps its claim."""
    task = worker.unique_job(on_conflict="retry", retry_countdown=30)
    first = task.delay(0)

    with worker.held(key="k:0"):
        run = worker.redeliver(task, 0, id=first.id)

    assert run.state == states.IGNORED
    assert worker.claims() == {first.id: pytest.approx(HOUR + 30)}


def test_claim_is_released_by_a_copy_of_a_job_that_has_finished(
    worker: Worker,
) -> None:
    """The copy came during the run, and took the claim again when it was sent again."""

    @worker.task(key="k:0", unique_while="queued_or_running")
    def job() -> None:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(worker.redeliver, job, id=first.id).result()

    first = job.delay()
    worker.run(job, id=first.id)
    assert set(worker.claims()) == {first.id}

    copy = worker.redeliver(job, id=first.id)

    assert copy.state == states.IGNORED
    assert worker.claims() == {}
    first.forget()
    assert job.delay().id != first.id


def retrying(worker: Worker) -> Any:
    """Return a task that retries itself once."""

    @worker.task(key="k:0", bind=True, unique_while="queued")
    def again(self: Any) -> None:
        if not self.request.retries:
            raise self.retry(countdown=30)

    return again


def test_claim_is_taken_again_by_a_job_that_retries_itself(worker: Worker) -> None:
    """The retry waits in the queue, so another call is a duplicate of it."""
    task = retrying(worker)
    first = task.delay()

    run = worker.run(task, id=first.id)

    assert run.stored == states.RETRY
    assert worker.claims() == {first.id: pytest.approx(HOUR + 30)}
    assert task.delay().id == first.id
    worker.run(task, id=first.id, retries=1)
    assert worker.claims() == {}


def test_claim_of_a_retry_outlives_a_late_release_of_the_run_before(
    worker: Worker,
) -> None:
    """A node may be away when the body begins, and back when its retry waits."""
    task = retrying(worker)
    first = task.delay()
    worker.run(task, id=first.id)
    (released,) = [
        one for one in worker.nodes.asked if one.script.name == RELEASE_CLAIM.name
    ]

    worker.nodes.send(released.again())

    assert list(worker.claims()) == [first.id]
    assert task.delay().id == first.id
    worker.run(task, id=first.id, retries=1)
    assert worker.claims() == {}


def test_claim_is_released_if_a_retry_could_not_be_sent(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has ended, and Celery before 5.7 stores no result that says so."""
    task = retrying(worker)
    first = task.delay()
    worker.collect()

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("the broker is away")

    monkeypatch.setattr(worker.app, "send_task", refuse)
    run = worker.run(task, id=first.id)
    monkeypatch.undo()

    assert run.state == states.REJECTED
    assert worker.claims() == {}
    again = task.delay()
    assert worker.messages() == [again.id]


def test_retry_is_published_beside_a_waiting_job(worker: Worker) -> None:
    """A retry is never dropped for a claim; the waiting job keeps the claim."""
    task = retrying(worker)
    waiting = task.delay()

    run = worker.run(task)

    assert [headers["id"] for headers, _ in worker.published] == [waiting.id, run.id]
    assert list(worker.claims()) == [waiting.id]


# -- the claim that a message carries ------------------------------------------------


def as_deployed_later(worker: Worker, **options: Any) -> Any:
    """Return the task of ``unique_job`` as another version of a worker has it."""

    def job(n: int = 0, more: int = 1) -> int:
        return n + more

    worker.app.tasks.unregister("job")
    runtime_of(worker.app)._options.clear()  # noqa: SLF001  (another process has none)
    options = {"key": "k:{n}:{more}", "unique_while": "queued", **options}
    return worker.task(**options)(job)


@pytest.mark.parametrize(
    "options",
    [{}, {"unique_while": "running"}, {"key": None}, {"unique_while": "queued"}],
    ids=["key", "unclaimed", "unkeyed", "claimed"],
)
def test_worker_with_another_version_releases_what_was_claimed(
    worker: Worker, options: dict[str, Any]
) -> None:
    """The key is the publisher's: the worker's arguments and options do not count."""
    first = worker.unique_job().delay(0)
    assert list(worker.claims()) == [first.id]

    run = worker.run(as_deployed_later(worker, **options), 0, id=first.id)

    assert run.stored == states.SUCCESS
    assert worker.claims() == {}


def test_job_whose_arguments_do_not_fit_releases_its_claim(worker: Worker) -> None:
    """It fails before its body begins: it waits no more."""
    first = worker.unique_job().delay(0)
    worker.app.tasks.unregister("job")

    @worker.task(key="k:{n}", unique_while="queued")
    def job(n: int, must: int) -> int:
        return n + must

    run = worker.run(job, 0, id=first.id)

    assert run.stored == states.FAILURE
    assert worker.claims() == {}


def test_republished_job_keeps_the_claim_of_its_publisher(worker: Worker) -> None:
    """A worker of another version prolongs it, and names it in the next message."""
    first = worker.unique_job(claim_ttl=60).delay(0)
    later = as_deployed_later(
        worker, on_conflict="retry", retry_countdown=30, claim_ttl=60
    )
    worker.nodes.clock.sleep(50)

    with worker.held(key="k:0:1"):
        run = worker.run(later, 0, id=first.id)

    assert run.stored == states.RETRY
    assert worker.published[-1][0]["redlock"]["claim"] == "k:0"
    assert worker.claims() == {first.id: pytest.approx(90)}
    assert worker.claims("k:0:1") == {}
    assert worker.run(later, 0, id=first.id).stored == states.SUCCESS
    assert worker.claims() == {}


@pytest.mark.parametrize("other", ["k:7", "of another task", "k:0\nk:1"])
def test_message_claims_no_key_but_that_of_its_call(worker: Worker, other: str) -> None:
    """Any client can write one; its call is published again without that claim."""
    task = worker.unique_job(on_conflict="retry", retry_countdown=30, claim_ttl=60)

    with worker.held(key="k:0"):
        run = worker.run(task, 0, redlock={"claim": other})

    assert run.stored == states.RETRY
    assert worker.claims(other) == {}
    assert task.delay(7).id != run.id


def test_message_keeps_no_claim_of_another_job(worker: Worker) -> None:
    """A forged one names the key that another job has claimed."""
    task = worker.unique_job(on_conflict="retry", retry_countdown=30, claim_ttl=60)
    victim = task.delay(7)
    before = worker.claims("k:7")

    with worker.held(key="k:0"):
        run = worker.run(task, 0, redlock={"claim": "k:7"})
    worker.run(task, 0, id=run.id)

    assert worker.claims("k:7") == before
    assert list(before) == [victim.id]


@pytest.mark.parametrize("state", [states.REVOKED, states.FAILURE, states.SUCCESS])
def test_claim_of_a_job_that_has_ended_is_taken_over(
    worker: Worker, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    """Celery stores REVOKED at once, and discards a delayed job when it is due."""
    task = worker.unique_job()
    first = task.apply_async((0,), countdown=HOUR)
    task.backend.store_result(first.id, None, state)

    with caplog.at_level(logging.INFO):
        second = task.delay(0)

    assert second.id != first.id
    assert second.conflict is None
    assert list(worker.claims()) == [second.id]
    assert worker.messages() == [first.id, second.id]
    assert f"{first.id}] has ended" in caplog.text


@pytest.mark.parametrize("state", [states.STARTED, states.RETRY, "PROGRESS"])
def test_claim_of_a_job_that_has_not_ended_stays(worker: Worker, state: str) -> None:
    """A job that retries itself waits, and keeps its claim."""
    task = worker.unique_job()
    first = task.delay(0)
    task.backend.store_result(first.id, None, state)

    assert task.delay(0).id == first.id


def test_running_job_is_not_taken_over(worker: Worker) -> None:
    """The lock alone says that a job runs, not its result."""
    task = worker.unique_job("queued_or_running")
    task.backend.store_result("running", None, states.SUCCESS)

    with worker.held("running", key="k:0"):
        assert task.delay(0).id == "running"


def test_release_claim_lets_the_next_call_in(worker: Worker) -> None:
    """It says whose claim it was: the job itself stays in its queue."""
    task = worker.unique_job()
    first = task.delay(0)

    assert task.release_claim(0) == first.id
    assert task.release_claim(0) is None

    assert worker.claims() == {}
    second = task.delay(n=0)
    assert worker.messages() == [first.id, second.id]


def test_release_claim_releases_each_claim_of_a_split(worker: Worker) -> None:
    """Where nodes name different jobs, all of them are released."""
    split_claims(worker.nodes, HOUR)

    assert worker.unique_job().release_claim(0) in {"other-0", "other-1", "other-2"}

    assert worker.claims() == {}


def test_release_claim_says_that_too_few_nodes_answer(worker: Worker) -> None:
    """The claim is released where nodes answer, and later where they did not."""
    task = worker.unique_job()
    task.delay(0)
    worker.nodes.partition(0, 1)

    with pytest.raises(QuorumUnreachable):
        task.release_claim(0)

    worker.nodes.heal()
    assert task.release_claim(0) is None
    assert worker.claims() == {}


# -- on the nodes: requests, outages and split claims ------------------------------


def test_publishing_waits_for_one_round_trip(worker: Worker) -> None:
    """The publisher waits for the replies to ``claim``, not to ``keep_claim``."""
    worker.nodes.latency(0.01)
    began = worker.nodes.clock.monotonic()

    worker.unique_job().delay(0)

    assert asked(worker.nodes) == ["claim", "keep_claim"]
    assert worker.nodes.clock.monotonic() - began == pytest.approx(0.01)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_claim_needs_a_majority_only(worker: Worker, cut: int) -> None:
    """With one of three nodes cut off, the second call is still a duplicate."""
    task = worker.unique_job()
    worker.nodes.partition(cut)

    first, second = task.delay(0), task.delay(0)

    assert second.id == first.id
    assert worker.messages() == [first.id]


def test_call_is_published_if_the_nodes_do_not_answer(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing claim stops no job: a warning is logged, and no claim is left."""
    task = worker.unique_job()
    worker.nodes.partition(0, 1)

    with caplog.at_level(logging.WARNING):
        first, second = task.delay(0), task.delay(0)

    assert worker.messages() == [first.id, second.id]
    assert (first.conflict, second.conflict) == (None, None)
    (line,) = ours(caplog)
    text = "will be published without a claim. Only 1 of 3 nodes"
    assert text in line.getMessage()
    worker.nodes.heal()
    assert worker.claims() == {}


def split_claims(nodes: FakeNodes, seconds: float) -> None:
    """Store the claim of a different job on each node, for so many seconds."""
    for number, node in enumerate(nodes.nodes):
        other = f"other-{number}\n0\njob\nother-{number}\nhost\n1\n0\nqueued".encode()
        node.memory.redis.set(b"redlock:claim:k:0", other, px=int(seconds * 1000))


def test_split_claims_are_tried_again(worker: Worker) -> None:
    """Of several clients that publish at once, one gets the claim in the end."""
    split_claims(worker.nodes, 0.005)

    first = worker.unique_job().delay(0)

    assert list(worker.claims()) == [first.id]
    assert worker.messages() == [first.id]


def test_split_claims_that_stay_split_stop_no_call(worker: Worker) -> None:
    """After a few tries the call is published without a claim."""
    split_claims(worker.nodes, 60.0)

    first = worker.unique_job().delay(0)

    assert worker.messages() == [first.id]
    assert len(args_of(worker.nodes, CLAIM.name)) == 5


# -- a cool-down: duplicates within ``unique_for`` after a success --------------------


def test_publisher_gets_the_job_that_succeeded_in_a_cool_down(worker: Worker) -> None:
    """For these seconds its result is the answer to the same call."""
    task = worker.unique_job("running", unique_for=60)
    first = task.delay(0)
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS

    second = task.delay(0)

    assert second.id == first.id
    assert second.get(timeout=1) == 0
    assert second.conflict.phase == "succeeded"
    assert second.conflict.retry_after == pytest.approx(60)
    worker.nodes.clock.sleep(60.01)
    assert task.delay(0).id != first.id
    assert worker.claims() == {}


def test_call_that_comes_to_a_worker_in_the_cool_down_is_skipped(
    worker: Worker,
) -> None:
    """A call that was published without a check is refused when it is executed."""
    task = worker.unique_job("running", unique_for=60)
    first = worker.run(task, 0)

    run = worker.run(task, 0)

    assert (run.state, run.stored) == (states.IGNORED, states.REVOKED)
    assert isinstance(run.result, DuplicateTask)
    assert first.id in str(run.result)
    assert worker.claims(kind="lock") == {}
    worker.nodes.clock.sleep(60.01)
    assert worker.run(task, 0).stored == states.SUCCESS


def test_cool_down_begins_with_success_only(worker: Worker) -> None:
    """A call that failed may run again at once."""

    @worker.task(key="k:0", unique_for=60)
    def failing() -> None:
        raise ValueError

    for _ in range(2):
        assert worker.run(failing).stored == states.FAILURE
    assert worker.claims(kind="cooldown") == {}


def test_allow_in_the_cool_down_runs_under_the_lock(worker: Worker) -> None:
    """No other call runs, so the lock is free to run under."""
    task = worker.unique_job("running", unique_for=60, on_conflict="allow")
    worker.run(task, 0)

    with SignalRecorder("lock_conflict", "lock_acquired") as events:
        run = worker.run(task, 0)

    assert run.stored == states.SUCCESS
    assert events.names == ["lock_acquired", "lock_conflict"]
    assert events.of("lock_conflict")[0].conflict.phase == "succeeded"
    assert list(worker.claims(kind="cooldown")) == [run.id]


def test_callable_that_waits_in_the_cool_down_waits_without_the_lock(
    worker: Worker,
) -> None:
    """The policy is asked again after each timeout, until the cool-down is over."""
    waited = []

    def wait(conflict: Conflict) -> Wait:
        waited.append(conflict.waited)
        worker.nodes.clock.sleep(5)  # the time that is slept is the machine's
        return Wait(0.01)

    task = worker.unique_job("running", unique_for=12, on_conflict=wait)
    worker.run(task, 0)

    assert worker.run(task, 0).stored == states.SUCCESS
    assert len(waited) == 3
    assert runtime_of(worker.app).redlock.inspect("k:0").holder is None


def test_own_cool_down_is_no_reason_to_skip(worker: Worker) -> None:
    """A redelivered message of a task without results runs again."""
    task = worker.unique_job("running", unique_for=60, ignore_result=True)

    for _ in range(2):
        assert worker.run(task, 0, id=worker.call_id).state == states.SUCCESS
