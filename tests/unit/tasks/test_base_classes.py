"""Base classes and signals of a project that change what is sent of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Task, signals, states

from celery_redlock import SingletonTask
from celery_redlock.policies import Conflict
from tests.unit.tasks.support import Worker

KEY = "k:0"


def id_of(task: Task) -> str:
    """Return the id of all calls of a task. Results in memory are shared by tests."""
    return f"{task.name}-{task.app.conf.task_default_queue}"


class PassesOn(Task):
    """Publishes each call as it is."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish what the caller has given."""
        return super().apply_async(args, kwargs, **options)


class ChoosesIds(Task):
    """Gives each call of a task the same id."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with the id of the task."""
        options["task_id"] = id_of(self)
        return super().apply_async(args, kwargs, **options)


class PassesId(Task):
    """Passes an id beside the other options."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with the id of the task."""
        return super().apply_async(args, kwargs, task_id=id_of(self), **options)


class ReplacesHeaders(Task):
    """Sets the headers of each message."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with one header."""
        options["headers"] = {"x_trace": "t-1"}
        return super().apply_async(args, kwargs, **options)


class PassesHeaders(Task):
    """Passes headers beside the other options."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with one header."""
        headers = {"x_trace": "t-1"}
        return super().apply_async(args, kwargs, headers=headers, **options)


class AddsKeyword(Task):
    """Adds a keyword to each message, and removes it before the body."""

    abstract = True
    typing = False

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with one more keyword."""
        kwargs = {**(kwargs or {}), "request_id": "r-1"}
        return super().apply_async(args, kwargs, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run without the keyword."""
        kwargs.pop("request_id", None)
        return super().__call__(*args, **kwargs)


class ChangesArgument(Task):
    """Sends another value than the caller has given."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish with the number that is meant."""
        return super().apply_async(({"zero": 0}[args[0]],), kwargs, **options)


class PublishesLater(Task):
    """Publishes when ``commit`` is called, and returns nothing."""

    abstract = True
    later: list[Callable[[], Any]]

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Keep the call for later."""
        send = super().apply_async
        self.later.append(lambda: send(args, kwargs, **options))

    def commit(self) -> list[Any]:
        """Publish all that is kept, and return the results."""
        found, self.later[:] = [send() for send in self.later], []
        return found


def composed_by_hand(base: type[Task], ours: type[Task] = SingletonTask) -> type[Task]:
    """Return what a project writes that composes its base classes itself."""
    return type("Composed", (ours, base), {"abstract": True})


@pytest.fixture(params=["by us", "by hand", "behind another"])
def unique(
    request: pytest.FixtureRequest, worker: Worker
) -> Callable[[type[Task]], Any]:
    """Give a function that makes a task on a base class, unique while it waits."""

    def make(base: type[Task], **options: Any) -> Any:
        if request.param == "by hand":
            base = composed_by_hand(base)
        elif request.param == "behind another":
            base = composed_by_hand(base, composed_by_hand(PassesOn))
        return worker.unique_job(base=base, **options)

    return make


@pytest.fixture
def receiver() -> Iterator[Callable[..., None]]:
    """Give a function that connects a receiver of ``before_task_publish``."""
    connected = []

    def connect(function: Callable[..., None]) -> None:
        signals.before_task_publish.connect(function, weak=False)
        connected.append(function)

    yield connect
    for function in connected:
        signals.before_task_publish.disconnect(function)


@pytest.mark.parametrize("base", [ChoosesIds, PassesId])
def test_claim_is_of_the_id_that_a_base_class_chooses(
    worker: Worker, unique: Any, base: type[Task]
) -> None:
    """The second call is a duplicate, although its id would be the same."""
    task = unique(base)

    first, second = task.delay(0), task.delay(0)

    assert first.id == second.id == id_of(task)
    assert isinstance(second.conflict, Conflict)
    assert list(worker.claims(KEY)) == [first.id]
    assert worker.messages() == [first.id]
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert worker.claims(KEY) == {}


@pytest.mark.parametrize("base", [ReplacesHeaders, PassesHeaders, PublishesLater])
def test_base_class_may_order_its_calls(worker: Worker, base: type[Task]) -> None:
    """A call is announced when the base class sends it, and not before."""
    task = worker.buffered(key="k:{number}", base=base)
    task.later = []

    task.delay(0)
    if base is PublishesLater:
        assert worker.announced(KEY) == []
        task.commit()

    assert worker.announced(KEY) == worker.messages() != []


@pytest.mark.parametrize("base", [ReplacesHeaders, PassesHeaders])
def test_base_class_that_sets_headers_keeps_ours(
    worker: Worker, unique: Any, base: type[Task]
) -> None:
    """Both headers are in the message, and the claim ends when the body begins."""
    task = unique(base)

    first = task.delay(0)
    worker.collect()
    ((headers, _),) = worker.published

    assert headers["x_trace"] == "t-1"
    assert headers["redlock"]["claim"] == KEY
    assert worker.run(task, 0, id=first.id).stored == states.SUCCESS
    assert worker.claims(KEY) == {}


@pytest.mark.parametrize(
    "base",
    [
        AddsKeyword,
        composed_by_hand(AddsKeyword),
        type("Above", (AddsKeyword, SingletonTask), {"abstract": True}),
    ],
    ids=["composed by us", "composed by hand", "above ours"],
)
def test_keyword_that_a_base_class_adds_and_removes_is_no_argument(
    worker: Worker, base: type[Task]
) -> None:
    """The call is claimed, runs, and is published again with the keyword."""
    task = worker.unique_job(base=base, on_conflict="retry")

    first, second = task.delay(0), task.delay(0)

    assert second.id == first.id
    more = {"id": first.id, "kwargs": {"request_id": "r-1"}}
    with worker.held(key=KEY):
        assert worker.run(task, 0, **more).stored == states.RETRY
    assert [body[1] for _, body in worker.published] == [{"request_id": "r-1"}] * 2
    assert list(worker.claims(KEY)) == [first.id]
    assert worker.run(task, 0, **more).stored == states.SUCCESS
    assert worker.claims(KEY) == {}


def test_claim_is_of_the_argument_that_a_base_class_sends(
    worker: Worker, unique: Any
) -> None:
    """The worker computes the key of the number that is in the message."""
    task = unique(ChangesArgument)

    first, second = task.delay("zero"), task.delay("zero")

    assert second.id == first.id
    assert list(worker.claims(KEY)) == [first.id]


def test_call_that_is_published_later_is_claimed_then(
    worker: Worker, unique: Any
) -> None:
    """``delay`` returns what the base class returns, and leaves no claim behind."""
    task = unique(PublishesLater)
    task.later = []

    assert task.delay(0) is None
    assert worker.claims(KEY) == {}
    (first,) = task.commit()

    assert worker.messages() == [first.id]
    assert list(worker.claims(KEY)) == [first.id]


def test_refused_call_is_published_again_without_the_base_class(
    worker: Worker, unique: Any
) -> None:
    """It might publish the next copy later, when nothing is committed any more."""
    task = unique(PublishesLater, on_conflict="retry")
    task.later = []

    with worker.held(key=KEY):
        run = worker.run(task, 0, id=worker.call_id)

    assert (run.stored, worker.messages()) == (states.RETRY, [])
    assert [headers["id"] for headers, _ in worker.published] == [worker.call_id]


def test_claim_follows_what_a_receiver_changes(
    worker: Worker, receiver: Callable[..., None]
) -> None:
    """No claim is left for an id or a key that was never sent."""
    task = worker.unique_job()

    def change(headers: Any, body: Any, **_: Any) -> None:
        headers["id"] = "another"
        body[1]["n"] = 1

    receiver(change)
    task.delay()

    assert worker.messages() == ["another"]
    assert worker.claims(KEY) == worker.claims("k:1") == {}


def test_claim_follows_what_the_app_sends(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app's own ``send_task`` may change id, arguments and headers."""
    task, send = worker.unique_job(), worker.app.send_task

    def send_task(name: str, args: Any, kwargs: Any, **options: Any) -> Any:
        options |= {"task_id": worker.call_id, "headers": {"x_trace": "t-1"}}
        return send(name, (1,), {}, **options)

    monkeypatch.setattr(worker.app, "send_task", send_task)
    first, second = task.delay(0), task.delay(0)

    assert {first.id, second.id} == {worker.call_id}
    assert worker.claims(KEY) == {}
    assert list(worker.claims("k:1")) == [worker.call_id]
    assert worker.run(task, 1, id=worker.call_id).stored == states.SUCCESS
    assert worker.claims("k:1") == {}


def test_app_that_sends_later_leaves_no_claim(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``delay`` returns what ``send_task`` returns."""
    task = worker.unique_job()
    monkeypatch.setattr(worker.app, "send_task", lambda *_, **__: None)

    assert task.delay(0) is None
    assert worker.claims(KEY) == {}


def test_claim_without_a_header_is_found_by_its_key(worker: Worker) -> None:
    """A proxy in front of the broker may keep Celery's own headers alone."""
    task = worker.unique_job()
    first = task.delay(0)
    worker.collect()

    assert worker.run(task, 0, id=first.id, redlock=None).stored == states.SUCCESS
    assert worker.claims(KEY) == {}


def test_announced_call_is_the_one_that_was_sent(
    worker: Worker, receiver: Callable[..., None]
) -> None:
    """No place in the order is kept for an id that was never sent."""
    task = worker.buffered(key="k:{number}")

    def change(headers: Any, body: Any, **_: Any) -> None:
        headers["id"], body[1]["number"] = "another", 1

    receiver(change)
    task.delay()

    assert worker.announced(KEY) == []
    assert worker.announced("k:1") == ["another"]


class AddsLock(SingletonTask):
    """Adds an argument to each call, that cannot be copied."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body with a lock of Python's."""
        return super().__call__(*args, mutex=threading.Lock(), **kwargs)


def test_argument_of_a_base_class_need_not_be_copied(worker: Worker) -> None:
    """The message of the call is kept for a repetition after a lost lock, no more."""

    @worker.task(base=AddsLock, typing=False, on_lock_lost="retry")
    def job(mutex: Any = None) -> None:
        mutex.acquire()

    assert worker.run(job).state == states.SUCCESS
