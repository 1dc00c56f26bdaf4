"""``task.explain()``: what would happen to a call. It changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.app.runtime import runtime_of
from celery_redlock.errors import FingerprintError
from celery_redlock.line.claims import Claims
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import Limit
from celery_redlock.policies import Conflict, Outage, Retry
from celery_redlock.testing import FakeNodes
from tests.unit.tasks.support import Worker

WHO = Holder("", task="unit.work", task_id="another", host="worker-1", pid=7)
KEY = "work:1"


def task_of(worker: Worker, **options: Any) -> Any:
    """Return a task with these lock options."""

    @worker.task(name="unit.work", key="work:{number}", **options)
    def work(number: int) -> None:
        """Do nothing."""

    return work


def explain(worker: Worker, **options: Any) -> Any:
    """Explain a call of a task with these lock options."""
    return task_of(worker, **options).explain(1)


def claim(worker: Worker) -> None:
    """Claim the call for another job, as if that waited in the queue."""
    assert not Claims(worker.rival).take(KEY, WHO, at_lock=False, at_cooldown=False)


def everything(nodes: FakeNodes) -> list[Any]:
    """Return all keys on the nodes with the rest of their time to live."""
    return [
        (name, node.memory.redis.pttl(name))
        for node in nodes.nodes
        for name in sorted(node.memory.redis.keys())
    ]


def test_free_call_would_be_published_and_run(worker: Worker) -> None:
    """No other job is in the way."""
    found = explain(worker)

    assert (found.task, found.key) == ("unit.work", KEY)
    assert (found.publish.decision, found.execute.decision) == ("publish", "run")
    assert found.would_run
    assert found.is_known
    assert found.holder is found.waiting is found.succeeded is None
    assert str(found) == (
        "A call of unit.work with the key 'work:1'.\n"
        "Published now, it would be published.\n"
        "Executed now, it would run."
    )


def test_lock_of_code_outside_of_a_task_is_no_call(worker: Worker) -> None:
    """`Task.lock` takes the lock of a call, and has no id."""
    worker.rival.acquire(KEY, holder=Holder("", task="unit.work", host="web", pid=7))

    reason = explain(worker).execute.reason

    assert reason.startswith("The key 'work:1' is held by unit.work on web (pid 7), ")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("skip", "be skipped"),
        ("raise", "fail"),
        ("retry", "be republished, to run after "),
        ("wait", "wait for at most 10.0 s"),
        ("allow", "run without the lock"),
        ("buffer_one", "wait in its queue, and run if it is the latest that waits"),
        ("cancel_running", "cancel the running call"),
    ],
)
def test_held_call_is_answered_by_the_policy(
    worker: Worker, policy: str, words: str
) -> None:
    """It names the decision for each word of ``on_conflict``, and the holder."""
    worker.rival.acquire(KEY, holder=WHO)

    found = explain(worker, on_conflict=policy)

    assert found.publish.decision == "publish"
    assert found.execute.decision == policy
    assert found.execute.goes_on is found.would_run is (policy == "allow")
    assert words in found.execute.words
    assert found.holder
    assert found.holder.task_id == "another"
    assert "unit.work[another]" in str(found)
    assert "worker-1" in found.execute.reason


def test_callable_gets_the_situation(worker: Worker) -> None:
    """It gets the same situation as in a worker, but without a task id."""
    told: list[Conflict] = []

    def ask(conflict: Conflict) -> Retry:
        told.append(conflict)
        return Retry(countdown=7)

    worker.rival.acquire(KEY, holder=WHO)

    found = explain(worker, on_conflict=ask)

    assert found.execute.words == "be republished, to run after 7.0 s"
    assert [(c.key, c.stage, c.phase, c.args, c.task_id) for c in told] == [
        (KEY, "execute", "running", (1,), "")
    ]


@pytest.mark.parametrize("policy", ["skip", "raise", "allow"])
def test_claimed_call_would_not_be_published(worker: Worker, policy: str) -> None:
    """A worker would run it all the same: a claim keeps no call from running."""
    claim(worker)

    found = explain(worker, unique_while="queued", on_conflict={"publish": policy})

    assert found.publish.decision == policy
    assert found.publish.goes_on == (policy == "allow")
    assert "waits in the queue" in found.publish.reason
    assert found.waiting
    assert found.waiting.holder.task_id == "another"
    assert found.would_run


@pytest.mark.parametrize(
    ("unique_while", "decision"), [("queued", "publish"), ("queued_or_running", "skip")]
)
def test_running_call_prevents_publishing_if_unique_while_says_so(
    worker: Worker, unique_while: str, decision: str
) -> None:
    """``queued`` lets one job wait while another runs."""
    worker.rival.acquire(KEY, holder=WHO)

    found = explain(worker, unique_while=unique_while)

    assert found.publish.decision == decision
    assert found.execute.decision == "skip"


def test_cool_down_prevents_publishing_and_running(worker: Worker) -> None:
    """It lasts ``unique_for`` seconds after a success."""
    Claims(worker.rival).cool_down(KEY, WHO, 60.0)

    found = explain(worker, unique_for=60)

    assert (found.publish.decision, found.execute.decision) == ("skip", "skip")
    assert "has just succeeded" in found.execute.reason
    assert found.succeeded
    assert not found.would_run


@pytest.mark.parametrize(
    ("policy", "decision"), [("retry", "retry"), ("run", "allow"), ("raise", "raise")]
)
def test_outage_is_answered_by_on_backend_error(
    worker: Worker, policy: str, decision: str
) -> None:
    """With too few nodes the holder is not known."""
    worker.nodes.partition(0, 1)

    found = explain(worker, on_backend_error=policy)

    assert not found.is_known
    assert found.execute.decision == decision
    assert "need 2" in found.execute.reason


def test_nodes_that_answer_may_not_vote_yet(worker: Worker) -> None:
    """After a restart nodes know of no holder, and grant no lock either."""
    told: list[Outage] = []

    def ask(outage: Outage) -> str:
        told.append(outage)
        return "raise"

    task = task_of(worker, on_backend_error=ask)
    assert task.explain(1).would_run
    for node in worker.nodes.nodes[:2]:
        node.memory.restart()

    found = task.explain(1)

    assert not found.would_run
    assert found.execute.decision == "raise"
    assert told


def test_explaining_changes_nothing(worker: Worker) -> None:
    """It writes neither to the nodes nor to a queue."""
    worker.rival.acquire(KEY, holder=WHO)
    claim(worker)
    runtime_of(worker.app).redlock.inspect(KEY)
    before, asked = everything(worker.nodes), len(worker.nodes.asked)

    explain(worker, unique_while="queued", unique_for=5, on_conflict="skip")

    assert everything(worker.nodes) == before
    names = {question.script.name for question in list(worker.nodes.asked)[asked:]}
    assert names <= {"inspect", "counters"}


def test_call_without_a_key_is_refused(worker: Worker) -> None:
    """The error is the same as at publishing."""
    with pytest.raises(FingerprintError):
        task_of(worker).explain(1, 2, 3)


# -- limits ----------------------------------------------------------------------

LIMIT = (Limit(KEY, 2),)


def test_call_with_a_free_permit_would_run(worker: Worker) -> None:
    """It says how many permits are in use, and by whom."""
    lease = worker.rival.acquire(KEY, holder=WHO, limits=LIMIT)

    found = explain(worker, limit=2)

    assert found.would_run
    (one,) = found.limits
    assert (one.limit, one.in_use, one.is_full) == (LIMIT[0], 1, False)
    assert [(seen.key, seen.holder.task_id) for seen in one.permits] == [
        (lease.key, "another")
    ]
    assert "work:1: 1 of 2 permits in use." in str(found)


def test_call_without_a_free_permit_is_answered_by_the_policy(worker: Worker) -> None:
    """A plain lock of the key is its first permit. The policy gets the limit."""
    told: list[Conflict] = []

    def ask(conflict: Conflict) -> str:
        told.append(conflict)
        return "skip"

    worker.rival.acquire(KEY, holder=WHO)
    worker.rival.acquire(KEY, ttl=20.0, holder=WHO, limits=LIMIT)  # lasts longer

    found = explain(worker, limit=2, on_conflict=ask)

    assert found.execute.decision == "skip"
    assert "All 2 permits of 'work:1' are in use, one of them by" in str(found)
    (conflict,) = told
    assert (conflict.held_key, conflict.limit) == (KEY, LIMIT[0])
    assert conflict.holder
    assert conflict.holder.task_id == "another"
    assert conflict.retry_after == pytest.approx(10.0, abs=1.0)


def test_call_over_the_rate_is_told_when_the_next_start_is_possible(
    worker: Worker,
) -> None:
    """The runs of the starts have ended, and their permits are kept."""
    limits = (Limit(KEY, 1), Limit(KEY, 1, 60.0))
    worker.rival.release(worker.rival.acquire(KEY, holder=WHO, limits=limits))

    found = explain(worker, rate="1/m")

    assert not found.would_run
    assert found.execute.decision == "retry"
    assert "1 of 1 starts in 60 s are taken. The next one is possible in 60." in str(
        found
    )
    assert [(one.limit, one.in_use) for one in found.limits] == [
        (limits[0], 0),
        (limits[1], 1),
    ]


def test_limits_are_not_known_without_a_majority(worker: Worker) -> None:
    """A call of a task with a limit is answered as any other in an outage."""
    worker.nodes.partition(0, 1)

    found = explain(worker, limit=2)

    assert not found.is_known
    assert found.limits == ()
