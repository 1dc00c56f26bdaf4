"""``task.explain()``: what would happen to a call. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock import singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.core.lease import Holder
from celery_redlock.core.records.claims import Claims
from celery_redlock.errors import FingerprintError
from celery_redlock.policies import Conflict, Outage, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes

WHO = Holder("", task="unit.work", task_id="another", host="worker-1", pid=7)
KEY = "work:1"


@pytest.fixture
def task_with(app: Celery) -> Callable[..., Any]:
    """Give a function that makes a task with these lock options."""

    def make(**options: Any) -> Any:
        @singleton_task(app=app, name="unit.work", key="work:{number}", **options)
        def work(number: int) -> None:
            """Do nothing."""

        return work

    return make


def claim(redlock: Redlock) -> None:
    """Claim the call for another job, as if that waited in the queue."""
    assert not Claims(redlock).take(KEY, WHO, at_lock=False, at_cooldown=False)


def everything(nodes: FakeNodes) -> list[Any]:
    """Return all keys on the nodes with the rest of their time to live."""
    return [
        (name, node.memory.redis.pttl(name))
        for node in nodes.nodes
        for name in sorted(node.memory.redis.keys())
    ]


def test_free_call_would_be_published_and_run(task_with: Callable[..., Any]) -> None:
    """No other job is in the way."""
    found = task_with().explain(1)

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


@pytest.mark.parametrize(
    ("policy", "decision", "runs", "words"),
    [
        ("skip", "skip", False, "be skipped"),
        ("raise", "raise", False, "fail"),
        ("retry", "retry", False, "be republished, to run after "),
        ("wait", "wait", False, "wait for at most 10.0 s"),
        ("allow", "allow", True, "run without the lock"),
        (
            "buffer_one",
            "buffer_one",
            False,
            "wait in its queue, and run if it is the latest that waits",
        ),
        ("cancel_running", "cancel_running", False, "cancel the running call"),
    ],
)
def test_held_call_is_answered_by_the_policy(  # noqa: PLR0913, PLR0917  (a table)
    task_with: Callable[..., Any],
    rival: Redlock,
    policy: str,
    decision: str,
    runs: bool,
    words: str,
) -> None:
    """It names the decision for each word of ``on_conflict``, and the holder."""
    rival.acquire(KEY, holder=WHO)

    found = task_with(on_conflict=policy).explain(number=1)

    assert found.publish.decision == "publish"
    assert found.execute.decision == decision
    assert (found.execute.goes_on, found.would_run) == (runs, runs)
    assert words in found.execute.words
    assert found.holder
    assert found.holder.task_id == "another"
    assert "unit.work[another]" in str(found)
    assert "worker-1" in found.execute.reason


def test_callable_gets_the_situation(
    task_with: Callable[..., Any], rival: Redlock
) -> None:
    """It gets the same situation as in a worker, but without a task id."""
    told: list[Conflict] = []

    def ask(conflict: Conflict) -> Retry:
        told.append(conflict)
        return Retry(countdown=7)

    rival.acquire(KEY, holder=WHO)

    found = task_with(on_conflict=ask).explain(1)

    assert found.execute.words == "be republished, to run after 7.0 s"
    assert [(c.key, c.stage, c.phase, c.args, c.task_id) for c in told] == [
        (KEY, "execute", "running", (1,), "")
    ]


@pytest.mark.parametrize(
    ("policy", "decision"), [("skip", "skip"), ("raise", "raise"), ("allow", "allow")]
)
def test_claimed_call_would_not_be_published(
    task_with: Callable[..., Any], rival: Redlock, policy: str, decision: str
) -> None:
    """A worker would run it all the same: a claim keeps no call from running."""
    claim(rival)
    task = task_with(unique_while="queued", on_conflict={"publish": policy})

    found = task.explain(1)

    assert found.publish.decision == decision
    assert found.publish.goes_on == (policy == "allow")
    assert "waits in the queue" in found.publish.reason
    assert found.waiting
    assert found.waiting.holder.task_id == "another"
    assert found.would_run


@pytest.mark.parametrize(
    ("unique_while", "decision"), [("queued", "publish"), ("queued_or_running", "skip")]
)
def test_running_call_prevents_publishing_if_unique_while_says_so(
    task_with: Callable[..., Any], rival: Redlock, unique_while: str, decision: str
) -> None:
    """``queued`` lets one job wait while another runs."""
    rival.acquire(KEY, holder=WHO)

    found = task_with(unique_while=unique_while).explain(1)

    assert found.publish.decision == decision
    assert found.execute.decision == "skip"


def test_cool_down_prevents_publishing_and_running(
    task_with: Callable[..., Any], rival: Redlock
) -> None:
    """It lasts ``unique_for`` seconds after a success."""
    Claims(rival).cool_down(KEY, WHO, 60.0)

    found = task_with(unique_for=60).explain(1)

    assert (found.publish.decision, found.execute.decision) == ("skip", "skip")
    assert "has succeeded" in found.execute.reason
    assert found.succeeded
    assert not found.would_run


@pytest.mark.parametrize(
    ("policy", "decision"), [("retry", "retry"), ("run", "allow"), ("raise", "raise")]
)
def test_outage_is_answered_by_on_backend_error(
    task_with: Callable[..., Any], nodes: FakeNodes, policy: str, decision: str
) -> None:
    """With too few nodes the holder is not known."""
    task = task_with(on_backend_error=policy)
    nodes.partition(0, 1)

    found = task.explain(1)

    assert not found.is_known
    assert found.execute.decision == decision
    assert "need 2" in found.execute.reason


def test_nodes_that_answer_may_not_vote_yet(
    task_with: Callable[..., Any], nodes: FakeNodes
) -> None:
    """After a restart nodes know of no holder, and grant no lock either."""
    told: list[Outage] = []

    def ask(outage: Outage) -> str:
        told.append(outage)
        return "raise"

    task = task_with(on_backend_error=ask)
    assert task.explain(1).would_run
    for node in nodes.nodes[:2]:
        node.memory.restart()

    found = task.explain(1)

    assert not found.would_run
    assert found.execute.decision == "raise"
    assert told


def test_explaining_changes_nothing(
    app: Celery, task_with: Callable[..., Any], nodes: FakeNodes, rival: Redlock
) -> None:
    """It writes neither to the nodes nor to a queue."""
    task = task_with(unique_while="queued", unique_for=5, on_conflict="skip")
    rival.acquire(KEY, holder=WHO)
    claim(rival)
    runtime_of(app).redlock.inspect(KEY)
    before, asked = everything(nodes), len(nodes.asked)

    task.explain(1)

    assert everything(nodes) == before
    names = {question.script.name for question in list(nodes.asked)[asked:]}
    assert names <= {"inspect", "counters"}


def test_call_without_a_key_is_refused(task_with: Callable[..., Any]) -> None:
    """The error is the same as at publishing."""
    with pytest.raises(FingerprintError):
        task_with().explain(1, 2, 3)
