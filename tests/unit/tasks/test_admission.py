"""Calls that a worker does not simply run: refused, redelivered, or sent twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from celery import Task, states
from celery.exceptions import TaskRevokedError
from celery.signals import before_task_publish

from celery_redlock import DuplicateTask, LockContended, QuorumUnreachable
from celery_redlock.app.runtime import runtime_of
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import Limit, with_copies
from celery_redlock.policies import Conflict, Wait
from celery_redlock.task.call import Call
from celery_redlock.task.header import mint
from celery_redlock.task.results import can_be_read
from celery_redlock.testing import FakeClock, SignalRecorder
from tests.unit.lock.support import put
from tests.unit.support import CONFLICT
from tests.unit.tasks.support import HOUR, KEY, Worker

IGNORED, FAILED = (states.IGNORED, states.REVOKED), (states.FAILURE, states.FAILURE)
RETRIED, SUCCEEDED = (states.RETRY, states.RETRY), (states.SUCCESS, states.SUCCESS)
SLOT = {"slot": "beat:project/nightly@2026-11-21T04:00:00+00:00"}


def in_seconds(seconds: float) -> str:
    """Return this instant as a message has it."""
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()


# -- a real duplicate --------------------------------------------------------------


def test_skip_finishes_the_result_and_names_holder_policy_and_key(
    worker: Worker,
) -> None:
    """The result is final, and its error gives the reason."""
    run = worker.refuse(worker.leased_job())

    assert (run.state, run.stored) == IGNORED
    assert isinstance(run.result, DuplicateTask)
    for word in ("other-id", "skip", f"'{KEY}'", run.id):
        assert word in str(run.result)
    assert worker.published == []


def test_skip_of_a_task_without_results_stores_none(worker: Worker) -> None:
    """``ignore_result`` counts here, too."""
    run = worker.refuse(worker.leased_job(ignore_result=True))

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)


def test_retry_republishes_the_same_call_and_spends_no_retry(worker: Worker) -> None:
    """The copy has the id, the arguments and the count of retries of the call."""
    task = worker.leased_job(on_conflict="retry", retry_countdown=7, max_retries=0)

    run = worker.refuse(task, 42, retries=2, group="group-id")

    assert (run.state, run.stored) == RETRIED
    ((headers, body),) = worker.published
    assert (headers["id"], headers["retries"], body[0]) == (run.id, 2, [42])
    assert headers["group"] == "group-id"
    assert headers["eta"] is not None
    assert headers["redlock"] == {"deferred": 1, "waits": (KEY, [], True, "")}


def test_retry_keeps_the_expiry_of_a_first_copy(worker: Worker) -> None:
    """A call that has not begun may expire while it waits."""
    expires = in_seconds(HOUR)

    worker.refuse(worker.leased_job(on_conflict="retry"), expires=expires)

    ((headers, _),) = worker.published
    assert headers["expires"] == expires


@pytest.mark.parametrize("is_ignored", [True, False])
def test_republished_call_keeps_its_ignore_result(
    worker: Worker, is_ignored: bool
) -> None:
    """A publisher may want another than the task has; Celery drops it before 5.7."""
    task = worker.leased_job(on_conflict="retry", ignore_result=not is_ignored)

    worker.refuse(task, ignore_result=is_ignored)

    ((headers, _),) = worker.published
    assert headers["ignore_result"] is is_ignored


@pytest.mark.parametrize("parent", [None, "parent-id"])
def test_republished_call_keeps_its_parent(worker: Worker, parent: str | None) -> None:
    """It is not its own parent, although it is published while it runs."""
    worker.refuse(worker.leased_job(on_conflict="retry"), parent_id=parent)

    ((headers, _),) = worker.published
    assert headers["parent_id"] == parent


def test_republished_call_shows_its_arguments_as_before(worker: Worker) -> None:
    """A publisher masks a secret with ``argsrepr``; events show no more than that."""
    shown = {"argsrepr": "('***',)", "kwargsrepr": "{'token': '***'}"}

    worker.refuse(worker.leased_job(on_conflict="retry"), "secret", **shown)

    ((headers, body),) = worker.published
    assert body[0] == ["secret"]
    assert {name: headers[name] for name in shown} == shown


def test_republished_call_keeps_its_stamps(worker: Worker) -> None:
    """Celery passes each as an option of its own, and a stamp may have any name."""
    stamps = {name: ["a"] for name in ("key", "task", "team")}

    worker.refuse(
        worker.leased_job(on_conflict="retry"),
        stamped_headers=[*stamps],
        stamps=stamps,
    )

    ((headers, _),) = worker.published
    assert headers["stamps"] == stamps


def test_call_that_can_never_be_republished_fails(worker: Worker) -> None:
    """An error that is not the broker's would come again: it ends the call."""
    task = worker.leased_job(on_conflict="retry", serializer="no_such")

    run = worker.refuse(task)

    assert (run.state, run.stored) == FAILED
    assert "no_such" in str(run.result)
    assert worker.published == []


def test_wait_keeps_the_worker_process_until_its_timeout(worker: Worker) -> None:
    """After ``wait_timeout`` the duplicate fails, and its error names the time."""
    task = worker.leased_job(on_conflict="wait", wait_timeout=4)
    began = worker.nodes.clock.monotonic()

    run = worker.refuse(task)

    assert run.stored == states.FAILURE
    assert "after 4 s of waiting" in str(run.result)
    assert 3 < worker.nodes.clock.monotonic() - began <= 4
    assert worker.published == []


def test_allow_runs_without_the_lock(worker: Worker) -> None:
    """The body has no lease."""
    run = worker.refuse(worker.leased_job(on_conflict="allow"))

    assert (run.stored, run.result) == (states.SUCCESS, False)


def test_conflict_is_signalled_with_its_decision(worker: Worker) -> None:
    """The signal carries the task, the situation with the holder, and the decision."""
    with SignalRecorder("lock_conflict") as events:
        run = worker.refuse(worker.leased_job(), 42)

    (event,) = events.seen
    assert event.sender.name == "job"
    assert event.conflict.task_id == run.id
    assert event.conflict.holder.task_id == "other-id"
    assert (event.conflict.args, event.conflict.limit) == ((42,), None)
    assert type(event.decision).__name__ == "Skip"


def test_policies_of_a_task_are_resolved_once(worker: Worker) -> None:
    """Each call uses the same resolved options; only the countdown is drawn anew."""
    task, runtime = worker.leased_job(on_conflict="retry"), runtime_of(worker.app)

    once = runtime.options(task)
    again = runtime.options(task)

    assert once is again
    assert once.on_conflict(CONFLICT) != once.on_conflict(CONFLICT)


# -- no holder, or too few nodes ----------------------------------------------------


def test_split_votes_are_republished_and_never_skipped(worker: Worker) -> None:
    """Without a holder that a majority names there is no duplicate."""
    for index in range(3):
        put(worker.nodes, index, f"token-{index}", key=KEY)

    run = worker.run(worker.leased_job())

    assert (run.state, run.stored) == RETRIED
    assert isinstance(run.result, LockContended)
    ((headers, _),) = worker.published
    assert headers["redlock"] == {"deferred": 1}


@pytest.mark.parametrize(
    ("policy", "ended"),
    [("raise", FAILED), ("skip", IGNORED), ("retry", RETRIED), ("run", SUCCEEDED)],
)
def test_unreachable_nodes_are_answered_by_on_backend_error(
    worker: Worker, policy: str, ended: tuple[str, str]
) -> None:
    """Each word of ``on_backend_error`` is performed."""
    worker.nodes.partition(0, 1)

    run = worker.run(worker.leased_job(on_backend_error=policy))

    assert (run.state, run.stored) == ended
    if policy == "run":
        assert run.result is False
    else:
        assert isinstance(run.result, QuorumUnreachable)
    assert len(worker.published) == (policy == "retry")


def test_outage_is_counted_apart_from_conflicts(worker: Worker) -> None:
    """The header counts outages and other deferrals separately."""
    worker.nodes.partition(0, 1)

    worker.run(worker.leased_job(), redlock={"deferred": 3, "outages": 2})

    ((headers, _),) = worker.published
    assert headers["redlock"] == {"deferred": 3, "outages": 3}


# -- a redelivered call: another copy with the same task id runs, or has ended -------


def test_copy_of_a_running_call_is_republished_and_leaves_the_result_alone(
    worker: Worker,
) -> None:
    """It is republished at once.

    A copy that waited here would be woken by the release, and run before Celery has
    stored the result of the first one.
    """
    task, call_id = worker.leased_job(), worker.call_id
    began = worker.nodes.clock.monotonic()

    with worker.held(call_id):
        run = worker.redeliver(task, 42, id=call_id, retries=1, expires=None)

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)
    ((headers, body),) = worker.published
    assert (headers["id"], headers["retries"], body[0]) == (call_id, 1, [42])
    known = {"deferred": 1, "redelivered": True, "met_copy": True}
    assert headers["redlock"] == known
    assert headers["expires"] is None
    assert worker.nodes.clock.monotonic() == began


@pytest.mark.parametrize("most", [0, 2], ids=["lock", "limit"])
def test_message_that_a_pool_gives_to_another_process_takes_the_lock_over(
    worker: Worker, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    """The first one was killed in the body, and the pool had not read that it began."""
    task = worker.leased_job(**({"limit": most} if most else {}))
    limits = with_copies((Limit(KEY, most),), worker.call_id) if most else ()
    message: dict[str, Any] = {}
    holder = replace(Holder.here(task="job", task_id=worker.call_id), pid=71)
    worker.rival.acquire(KEY, base=mint(message), holder=holder, limits=limits)

    run = worker.run(task, 42, id=worker.call_id, redlock=message["redlock"])

    assert (run.stored, run.result, worker.published) == (states.SUCCESS, True, [])
    assert "process 71 is gone" in caplog.text
    assert worker.rival.acquire(KEY, limits=limits).is_valid()  # nothing is left


def test_earlier_attempt_of_this_process_is_not_said_to_be_gone(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its release may still be on the way; the call tries again later."""
    message: dict[str, Any] = {}
    holder = Holder.here(task="job", task_id=worker.call_id)
    worker.rival.acquire(KEY, base=mint(message), holder=holder)

    run = worker.run(
        worker.leased_job(), 42, id=worker.call_id, redlock=message["redlock"]
    )

    assert (run.state, len(worker.published)) == (states.IGNORED, 1)
    assert "is gone" not in caplog.text


@pytest.mark.parametrize("is_stored", [True, False], ids=["ran", "killed"])
def test_copy_that_has_waited_beside_the_first_one_looks_for_its_result(
    worker: Worker, *, is_stored: bool
) -> None:
    """A worker that lost its connection still waits for the lock, as the copy does.

    Its call runs first, and the copy has the lock just before the result is stored.
    """
    task, clock = worker.leased_job(on_conflict="wait"), worker.nodes.clock
    assert isinstance(clock, FakeClock)
    other = Holder.here(task="job", task_id="other-id")
    lease = worker.rival.acquire(KEY, holder=other)

    def ends() -> None:
        worker.rival.release(lease)
        if is_stored:
            store = partial(task.backend.store_result, worker.call_id)
            clock.at(0.3, lambda: store("the first one", states.SUCCESS))

    clock.at(3, ends)
    run = worker.redeliver(task, id=worker.call_id)

    assert (run.stored, run.result) == (
        states.SUCCESS,
        "the first one" if is_stored else True,
    )


def test_copy_of_a_retry_waits_for_the_result_of_the_first_one(worker: Worker) -> None:
    """It has met that, so the RETRY that is stored is of the attempt before."""
    task, clock = worker.leased_job(), worker.nodes.clock
    assert isinstance(clock, FakeClock)
    task.backend.mark_as_retry(worker.call_id, ValueError("not yet"))
    store = partial(task.backend.store_result, worker.call_id)
    clock.at(0.3, lambda: store("the first one", states.SUCCESS))
    header = {"deferred": 1, "redelivered": True, "met_copy": True}

    run = worker.redeliver(task, id=worker.call_id, retries=1, redlock=header)

    assert (run.state, run.result) == (states.IGNORED, "the first one")


def test_copy_does_not_wait_for_a_result_until_its_own_lock_has_ended(
    worker: Worker,
) -> None:
    """The first copy was killed, and the lock that this one has is not renewed."""
    task = worker.leased_job(ttl=2.0, renew=False)
    header = {"deferred": 1, "redelivered": True, "met_copy": True}

    run = worker.run(task, 42, redlock=header)

    assert (run.state, run.stored) == SUCCEEDED


@pytest.mark.parametrize("holder", ["itself", "another"])
@pytest.mark.parametrize("seconds", [HOUR, -1], ids=["in time", "expired"])
def test_republished_copy_keeps_its_expiry_for_the_moment_when_it_has_its_lock(
    worker: Worker, holder: str, seconds: float
) -> None:
    """Before that, another copy may run, and the end of this one would be its result.

    RabbitMQ is not told, because it would discard the message.
    """
    task = worker.leased_job(on_conflict="retry")
    expires, call_id = in_seconds(seconds), worker.call_id
    properties: list[Any] = []

    def note(**sent: Any) -> None:
        properties.append(sent["properties"])

    before_task_publish.connect(note)
    with worker.held(call_id if holder == "itself" else "other-id"):
        run = worker.redeliver(task, id=call_id, expires=expires)

    assert (run.state, run.stored) == (states.IGNORED, states.PENDING)
    ((headers, _),) = worker.published
    assert headers["expires"] == expires
    assert "expiration" not in properties[0]


@pytest.mark.parametrize(("deferred", "seconds"), [(0, 1), (2, 4), (20, 10)])
def test_copy_waits_longer_each_time_up_to_the_ttl(
    worker: Worker, deferred: int, seconds: float
) -> None:
    """The countdown doubles, so that a long job is not asked for every second."""
    task, header = worker.leased_job(), {"deferred": deferred, "redelivered": True}
    began = datetime.now(timezone.utc)

    with worker.held(worker.call_id):
        worker.run(task, id=worker.call_id, redlock=header)

    eta = datetime.fromisoformat(worker.published[-1][0]["eta"])
    longest = timedelta(seconds=seconds)
    assert began + longest / 2 <= eta <= datetime.now(timezone.utc) + longest


@pytest.mark.parametrize("key", [KEY, "another"], ids=["held", "free"])
@pytest.mark.parametrize("comes_back", ["redelivered", "republished"])
def test_copy_of_a_call_that_has_ended_is_dropped(
    worker: Worker, comes_back: str, key: str
) -> None:
    """A stored result shows its end, and stays, even if another call has the lock.

    A killed process leaves two copies: its message, and the one it had published.
    The broker marks only the first of them as redelivered. When it has ended, RETRY of
    the second would replace its result, for ever if a process is killed again.
    """
    task = worker.leased_job()
    task.backend.store_result(worker.call_id, "the result", states.SUCCESS)

    with worker.held(key=key):
        if comes_back == "redelivered":
            run = worker.redeliver(task, id=worker.call_id)
        else:
            run = worker.run(task, id=worker.call_id, redlock={"deferred": 1})

    assert (run.state, run.stored) == (states.IGNORED, states.SUCCESS)
    assert run.result == "the result"
    assert worker.published == []


def test_copy_of_a_call_that_has_ended_does_not_run_without_its_lock(
    worker: Worker,
) -> None:
    """A policy lets it run beside another call, but it has run already."""
    ran: list[int] = []

    def body() -> None:
        ran.append(1)

    task = worker.task(on_conflict="allow")(body)
    task.backend.store_result(worker.call_id, "the result", states.SUCCESS)

    with worker.held():
        run = worker.run(task, id=worker.call_id, redlock={"deferred": 1})

    assert (run.state, run.stored) == (states.IGNORED, states.SUCCESS)
    assert ran == []


def test_copy_of_a_call_without_a_result_runs(worker: Worker) -> None:
    """The first copy died: this one runs under the lock."""
    run = worker.redeliver(worker.leased_job())

    assert (run.stored, run.result) == (states.SUCCESS, True)


def test_redelivered_call_that_has_expired_ends_as_expired(worker: Worker) -> None:
    """The lock shows that no copy runs, so the expiry counts."""
    run = worker.redeliver(worker.leased_job(), expires=in_seconds(-1))

    assert run.stored == states.REVOKED
    assert isinstance(run.result, TaskRevokedError)


@pytest.mark.parametrize("policy", ["on_conflict", "on_backend_error"])
def test_redelivered_call_that_has_expired_does_not_run_without_its_lock_either(
    worker: Worker, policy: str
) -> None:
    """The main process of its worker has left its expiry to the task."""
    task = worker.leased_job(on_conflict="allow", on_backend_error="run")
    if policy == "on_backend_error":
        worker.nodes.freeze()

    with worker.held() if policy == "on_conflict" else nullcontext():
        run = worker.redeliver(task, expires=in_seconds(-1))

    assert run.stored == states.REVOKED
    assert isinstance(run.result, TaskRevokedError)


def test_call_that_expires_while_it_waits_in_its_process_does_not_run(
    worker: Worker,
) -> None:
    """The main process has looked at the expiry before the wait began."""
    with ExitStack() as holding:

        def wait(_: Conflict) -> Wait:
            holding.close()
            return Wait(1.0)

        holding.enter_context(worker.held())
        task = worker.leased_job(unique_while="queued", on_conflict=wait)
        run = worker.run(task, id=task.delay().id, expires=in_seconds(-1))

    assert (run.state, run.stored) == IGNORED
    assert isinstance(run.result, TaskRevokedError)
    assert worker.claims(KEY) == {}
    assert worker.rival.inspect(KEY).holder is None


def test_refused_call_that_has_expired_is_not_published_again(worker: Worker) -> None:
    """RabbitMQ would discard the message, and its result would be RETRY for ever."""
    task = worker.leased_job(on_conflict="retry", unique_while="queued")

    run = worker.refuse(task, id=task.delay().id, expires=in_seconds(-1))

    assert (run.state, run.stored) == IGNORED
    assert isinstance(run.result, TaskRevokedError)
    assert [headers["id"] for headers, _ in worker.published] == [run.id]
    assert worker.claims(KEY) == {}


def test_app_without_a_result_backend_is_no_error(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """No stored result can tell whether the other call has ended."""
    worker.app.conf.result_backend = None
    task = worker.leased_job()

    call = Call.of(task, task.request, (), {})

    assert not call.other_has_ended(worker.call_id)
    assert [r for r in caplog.records if r.name == "celery_redlock.task.results"] == []


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's backend
def test_finished_member_that_was_not_counted_is_counted_by_its_copy(
    worker: Worker, three_nodes: DevNodes
) -> None:
    """A chord member that is killed before it is counted does not hang its chord."""
    worker.app.conf.result_backend = three_nodes.urls[0]
    backend = worker.app.backend
    backend.store_result("the-id", True, states.SUCCESS)  # noqa: FBT003  (the result)
    counted = backend.get_key_for_group("the-group", ".j")
    body = worker.app.signature("tail").set(task_id="the-tail", chord_size=2)
    member: Any = {"group": "the-group", "group_index": 0, "chord": body}

    run = worker.redeliver(worker.leased_job(), id="the-id", **member)

    assert run.state == states.IGNORED
    assert backend.client.zcard(counted) == 1


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's backend
def test_finished_member_comes_back_while_another_process_may_send_the_body(
    worker: Worker, three_nodes: DevNodes
) -> None:
    """It claims nothing for its way back, and does not run, also without its result."""
    worker.app.conf.result_backend = three_nodes.urls[0]
    backend, task = worker.app.backend, worker.unique_job()
    backend.store_result("the-id", 0, states.SUCCESS)
    backend.set_chord_size("the-group", 2)
    backend.client.set(backend.get_key_for_group("the-group", ".c"), "a token", ex=60)
    body = worker.app.signature("tail").set(task_id="the-tail")
    member: Any = {"group": "the-group", "group_index": 0, "chord": body}

    run = worker.redeliver(task, id="the-id", **member)

    assert run.state == states.IGNORED
    ((headers, _),) = worker.published
    assert headers["redlock"]["ended"] is True
    assert worker.claims() == {}
    backend.forget("the-id")
    again = worker.run(task, id="the-id", redlock=headers["redlock"], **member)
    assert (again.state, again.stored) == (states.IGNORED, states.PENDING)


# -- a slot that beat has sent twice -------------------------------------------------


def test_second_message_for_a_slot_is_skipped(worker: Worker) -> None:
    """The first message has ended, and the lock is free."""
    task = worker.leased_job()
    first = worker.run(task, redlock=SLOT)

    second = worker.run(task, redlock=SLOT)

    assert first.result is True
    assert (second.state, second.stored) == IGNORED
    assert isinstance(second.result, DuplicateTask)
    assert f"sent {SLOT['slot']} twice" in str(second.result)
    assert f"the first message runs as {first.id}" in str(second.result)


def test_second_message_is_no_conflict(worker: Worker) -> None:
    """The policy is not asked, so a slot that runs is not republished."""
    task = worker.leased_job(on_conflict="retry")
    first = worker.run(task, redlock=SLOT)

    with worker.held(first.id):
        second = worker.run(task, redlock=SLOT)

    assert second.stored == states.REVOKED
    assert worker.published == []


@pytest.mark.parametrize("policy", ["buffer_one", "cancel_running"])
def test_second_message_takes_the_place_of_a_first_one_that_waits(
    worker: Worker, policy: str
) -> None:
    """Of the calls that wait the latest runs: to drop it, too, would leave none."""
    task = worker.leased_job(on_conflict=policy)
    headers = {"redlock": SLOT}
    first, second = (task.apply_async(headers=headers) for _ in range(2))

    assert worker.run(task, id=first.id).stored == states.REVOKED
    assert worker.run(task, id=second.id).result is True


@pytest.mark.parametrize("policy", ["buffer_one", "cancel_running"])
def test_second_message_is_skipped_where_the_first_has_begun(
    worker: Worker, policy: str
) -> None:
    """Also where the latest call runs: it would be the same slot again."""
    task = worker.leased_job(on_conflict=policy)
    first = task.apply_async(headers={"redlock": SLOT})
    assert worker.run(task, id=first.id).result is True

    second = task.apply_async(headers={"redlock": SLOT})

    assert worker.run(task, id=second.id).stored == states.REVOKED


@pytest.mark.parametrize("policy", ["buffer_one", "cancel_running"])
def test_second_message_that_is_skipped_lets_the_call_before_it_run(
    worker: Worker, policy: str
) -> None:
    """It never runs, so no call may end in its favour, also without results."""
    task = worker.leased_job(on_conflict=policy, ignore_result=True)
    first = task.apply_async(headers={"redlock": SLOT})
    worker.run(task, id=first.id)
    other = task.apply_async()
    second = task.apply_async(headers={"redlock": SLOT})

    assert worker.run(task, id=second.id).state == states.IGNORED
    assert worker.run(task, id=other.id).state == states.SUCCESS


@pytest.mark.parametrize("policy", ["buffer_one", "cancel_running"])
def test_call_before_a_second_message_that_is_skipped_runs(
    worker: Worker, policy: str
) -> None:
    """No call ends in favour of the second message while that is still in its queue."""
    task = worker.leased_job(on_conflict=policy)
    first = task.apply_async(headers={"redlock": SLOT})
    worker.run(task, id=first.id)
    other = task.apply_async()
    second = task.apply_async(headers={"redlock": SLOT})

    assert worker.run(task, id=other.id).result is True
    assert worker.run(task, id=second.id).stored == states.REVOKED


def test_second_message_asks_the_first_one_that_runs_for_no_end(worker: Worker) -> None:
    """The second one is skipped then: the slot would have no run."""
    asked: list[str] = []

    @worker.task(on_conflict="cancel_running")
    def job() -> None:
        with ThreadPoolExecutor(1) as beat:  # which is in the body of no task
            beat.submit(job.apply_async, headers={"redlock": SLOT}).result()
        holder = worker.rival.inspect(KEY).holder
        asked.append(holder.cancelled_by if holder else "no holder")

    first = job.apply_async(headers={"redlock": SLOT})
    worker.run(job, id=first.id)

    assert asked == [""]


def test_slots_are_different_by_entry_and_time(worker: Worker) -> None:
    """The next night is another slot; a call without a slot is never skipped."""
    task = worker.leased_job()
    worker.run(task, redlock=SLOT)

    another = {"slot": SLOT["slot"].replace("-21T", "-22T")}
    assert worker.run(task, redlock=another).result is True
    assert worker.run(task).result is True
    assert worker.run(task).result is True


def test_redelivery_of_the_first_message_runs(worker: Worker) -> None:
    """It has the same task id, and no stored result shows that it has run."""
    task = worker.leased_job(ignore_result=True)
    first = worker.run(task, redlock=SLOT)

    again = worker.redeliver(task, id=first.id, redlock=SLOT)

    assert again.state == states.SUCCESS


def test_slot_of_a_task_is_not_that_of_the_calls_that_it_sends(worker: Worker) -> None:
    """A plain task that beat calls may pass its headers on, as for a trace."""
    job = worker.leased_job()

    @worker.app.task(bind=True, shared=False)
    def dispatch(self: Task) -> None:
        for _ in range(2):
            job.apply_async(headers=self.request.headers)

    worker.run(dispatch, redlock=SLOT)

    sent = [headers for headers, _ in worker.published]
    runs = [worker.run(job, id=one["id"], parent_id=one["parent_id"]) for one in sent]
    assert [run.result for run in runs] == [True, True]


def test_slot_stays_on_a_call_that_is_republished(worker: Worker) -> None:
    """The republished call keeps its slot; a second message is still skipped."""
    task = worker.leased_job(on_conflict="retry")
    first = worker.refuse(task, redlock=SLOT)
    ((headers, _),) = worker.published
    assert headers["redlock"]["slot"] == SLOT["slot"]

    assert worker.run(task, redlock=SLOT).stored == states.REVOKED
    again = worker.run(task, id=first.id, redlock=headers["redlock"])
    assert again.result is True


def test_retry_of_a_body_is_not_for_the_slot(worker: Worker) -> None:
    """The slot has run, so a retry by the body is a call without a slot."""

    @worker.task(bind=True)
    def failing(self: Task) -> None:
        raise self.retry(countdown=1)

    worker.run(failing, redlock=SLOT)

    ((headers, _),) = worker.published
    assert "slot" not in (headers.get("redlock") or {})


def test_slot_runs_where_nodes_cannot_tell(worker: Worker) -> None:
    """If too few nodes answer, ``on_backend_error`` decides."""
    task = worker.leased_job(on_backend_error="run")
    worker.run(task, redlock=SLOT)
    worker.nodes.freeze()

    assert worker.run(task, redlock=SLOT).result is False


def test_result_in_a_queue_of_its_caller_is_not_read(worker: Worker) -> None:
    """To look for it would make a queue, and say that there is none."""
    worker.app.conf.update(result_backend="rpc://", result_persistent=True)
    task = worker.leased_job()

    assert task.backend.persistent
    assert not can_be_read(task)
