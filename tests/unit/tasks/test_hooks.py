"""Which hooks of Celery run for a call, and under its lock: the table in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Task, signals, states
from celery.exceptions import Ignore, Reject

from celery_redlock import current_lease
from celery_redlock.line.backlog import place_of_newcomer
from celery_redlock.task.header import mint
from tests.unit.tasks.support import Worker

PAGE = Path(__file__).parents[3] / "docs/reference/works-with.md"
SIGNALS = ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry")
ENDS = ("runs", "skipped", "raises", "republished", "retries itself")


class Hooked(Task):
    """Notes each hook of a task class, and whether its lock is held."""

    abstract = True
    seen: dict[str, bool]

    def note(self, hook: str) -> None:
        """Note a hook."""
        self.seen[hook] = current_lease() is not None

    def before_start(self, *_: Any) -> None:
        """Note it."""
        self.note("before_start")

    def on_success(self, *_: Any) -> None:
        """Note it."""
        self.note("on_success")

    def on_failure(self, *_: Any) -> None:
        """Note it."""
        self.note("on_failure")

    def on_retry(self, *_: Any) -> None:
        """Note it."""
        self.note("on_retry")

    def after_return(self, *_: Any) -> None:
        """Note it."""
        self.note("after_return")


@pytest.fixture
def seen() -> Iterator[dict[str, bool]]:
    """Give the hooks that have run, each with whether the lock was held."""
    found: dict[str, bool] = {}
    connected = []
    for name in SIGNALS:

        def note(name: str = name, **_: Any) -> None:
            found[name] = current_lease() is not None

        getattr(signals, name).connect(note, weak=False)
        connected.append((getattr(signals, name), note))
    yield found
    for signal, receiver in connected:
        signal.disconnect(receiver)


def documented() -> dict[str, list[str]]:
    """Return the rows of the table in the docs: the cells of each hook."""
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return {hook: cells.split(" | ") for hook, cells in rows}


@pytest.mark.parametrize("end", ENDS)
def test_hooks_of_a_call_are_those_of_the_docs(
    worker: Worker, seen: dict[str, bool], end: str
) -> None:
    """A dash is a hook that does not run; ``held`` is one that has the lock."""

    @worker.task(
        bind=True,
        base=Hooked,
        on_conflict={"raises": "raise", "republished": "retry"}.get(end, "skip"),
    )
    def job(self: Any) -> None:
        if end == "retries itself":
            raise self.retry(countdown=60)

    job.seen = seen
    is_refused = end in ("skipped", "raises", "republished")
    run = (worker.refuse if is_refused else worker.run)(job)

    assert run.stored in states.ALL_STATES
    cells = {
        hook: ("held" if seen[hook] else "yes") if hook in seen else "–"
        for hook in documented()
    }
    column = ENDS.index(end)
    assert cells == {hook: row[column] for hook, row in documented().items()}


@pytest.mark.parametrize(
    ("end", "is_over"),
    [(Ignore(), True), (Reject("why"), True), (Reject("why", requeue=True), False)],
    ids=["ignored", "rejected", "requeued"],
)
def test_hook_that_ends_a_call_before_its_lock_is_asked_for_ends_its_entries(
    worker: Worker, end: Exception, *, is_over: bool
) -> None:
    """Celery stores no result of such a call, so nothing else would end them."""

    def stop(*_: Any) -> None:
        raise end

    claimed = worker.unique_job(
        before_start=stop,
        in_order=True,
        on_conflict={"publish": "skip", "execute": "retry"},
    )
    followed = worker.buffered(name="followed", before_start=stop)
    first, second = claimed.delay(0), followed.delay(0)

    worker.run(claimed, 0, id=first.id)
    worker.run(followed, 0, id=second.id)

    place = place_of_newcomer(worker.rival, "k:0")
    assert place is not None
    assert list(worker.claims()) == [first.id] * (not is_over)
    assert place.before == (not is_over)
    assert worker.announced(task="followed") == [second.id] * (not is_over)


def test_retry_of_a_hook_keeps_the_claim_and_gives_up_its_place(worker: Worker) -> None:
    """Like a retry of the body it holds up no other before it asks for its lock."""

    def again(task: Task, *_: Any) -> None:
        raise task.retry(countdown=1)

    job = worker.unique_job(
        before_start=again,
        in_order=True,
        on_conflict={"publish": "skip", "execute": "retry"},
    )
    first = job.delay(0)

    assert worker.run(job, 0, id=first.id).stored == states.RETRY

    place = place_of_newcomer(worker.rival, "k:0")
    assert place is not None
    assert place.before == 0
    assert list(worker.claims()) == [first.id]


def test_headers_that_a_hook_passes_on_say_nothing_of_the_call_that_it_sends(
    worker: Worker,
) -> None:
    """A worker has put more into the header of the package: it is of one call."""
    other = worker.buffered(name="other")

    def pass_on(task: Task, *_: Any) -> None:
        other.apply_async((1,), headers=task.request.headers)

    job = worker.leased_job(before_start=pass_on)
    received: dict[str, Any] = {"redlock": {"published": 7, "deferred": 3}, "mine": 1}
    mint(received)

    worker.run(job, **received)

    ((headers, _),) = worker.published
    assert headers["mine"] == 1
    assert headers["redlock"].keys() == {"published"}
    assert headers["redlock"]["published"] > received["redlock"]["published"]
