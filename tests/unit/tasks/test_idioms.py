"""Tasks as users of Celery and of other libraries write them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, current_app, group, signals, states
from celery.app import builtins
from celery.exceptions import Reject

from celery_redlock import (
    ConfigurationError,
    DuplicateTask,
    FingerprintError,
    LockHeld,
    SingletonTask,
    current_lease,
    singleton_task,
)
from celery_redlock.options.foreign import FOREIGN
from celery_redlock.options.lock_options import LockOptions, lock_tasks
from tests.unit.tasks.support import KEY, Worker, open_app

DOCS = Path(__file__).parents[3] / "docs" / "how-to"


def nothing() -> None:
    """Do nothing."""


# -- options as arguments of Celery's own decorator --------------------------------


def test_options_of_celerys_decorator_are_lock_options(worker: Worker) -> None:
    """``@app.task(base=SingletonTask, unique_on=[...])``, as in other libraries."""

    @worker.app.task(
        base=SingletonTask, name="job", unique_on=["a"], on_conflict="raise"
    )
    def job(a: int, b: int = 0) -> int:
        return a + b

    options = worker.app.tasks["job"].lock_options
    assert (options.unique_on, options.on_conflict) == (["a"], "raise")
    assert job.lock_key(1, 2) == job.lock_key(1, 3) != job.lock_key(2, 2)


def test_attributes_of_a_class_are_lock_options(worker: Worker) -> None:
    """A task that is a class; its methods are its own."""

    class Sync(SingletonTask):
        name = "sync"
        on_conflict = "retry"
        unique_on = ("a",)

        def run(self, a: int) -> int:
            return a

        def key(self) -> str:
            return "not an option"

    task = worker.app.register_task(Sync())
    assert task.lock_options.on_conflict == "retry"
    assert task.lock_options.unique_on == ("a",)
    assert task.lock_options.key is None


def test_annotations_change_the_options_of_a_task(worker: Worker) -> None:
    """``task_annotations`` come on top of what the task says itself."""
    worker.app.conf.task_annotations = {
        "job": {"redlock": {"on_conflict": "raise"}},
        "other": {"on_conflict": "retry"},
    }
    job, other = (worker.leased_job(name=name, ttl=7) for name in ("job", "other"))

    assert (job.lock_options.on_conflict, job.lock_options.ttl) == ("raise", 7.0)
    assert (other.lock_options.on_conflict, other.lock_options.key) == ("retry", KEY)


def test_wrong_annotation_is_refused(worker: Worker) -> None:
    """The error names the task and the remedy."""
    worker.app.conf.task_annotations = {"job": {"redlock": {"on_conflit": "raise"}}}

    with pytest.raises(ConfigurationError, match=r"job: .*Did you mean 'on_conflict'"):
        worker.leased_job(name="job").lock_key()


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_option_of_another_library_is_refused(worker: Worker, name: str) -> None:
    """The error names the page about the migration, which has the option."""
    refusal = refused(worker, name)

    found = re.search(r"https://\S+/how-to/(migrate-from-[a-z-]+\.md)", refusal)
    assert found is not None
    page = (DOCS / found[1]).read_text(encoding="utf-8")
    assert re.search(rf'[`"]{name}[`"=]', page)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("lock_timeout", "ttl"),
        ("lock_key", "key"),
        ("redlock_ttl", "Write ttl for this task alone."),
        ("redlock_key", "Write key for this task alone."),
        ("redlock_nodes", "settings of the app, and belong in app.conf"),
    ],
)
def test_option_that_is_none_of_a_task_is_refused(
    worker: Worker, name: str, remedy: str
) -> None:
    """A common name for a lock's time, a method of ours, a setting of the app."""
    refusal = refused(worker, name)

    assert f"There is no lock option {name!r}." in refusal
    assert remedy in refusal
    assert "app.conf.redlock_key" not in refusal  # there is no such setting


def refused(worker: Worker, name: str) -> str:
    """Return how an option is refused by our decorator, and by Celery's."""
    options: dict[str, Any] = {"name": name, name: 1}
    with pytest.raises(ConfigurationError) as refusal:
        singleton_task(app=worker.app, **options)(nothing)
    with pytest.raises(ConfigurationError):
        worker.app.task(base=SingletonTask, lazy=False, **options)(nothing)
    return str(refusal.value)


def test_attribute_of_a_base_class_is_no_lock_option(worker: Worker) -> None:
    """A base class of the project reads it, whichever library has an option of it."""

    class Fetch(Task):
        abstract = True
        timeout = 1
        lock_timeout = 2
        limits = 3

    known: dict[str, Any] = {"timeout": 10, "lock_timeout": 20, "limits": 30}
    ours = singleton_task(app=worker.app, base=Fetch, name="ours", **known)(nothing)

    class Both(Fetch, SingletonTask):
        abstract = True

    celerys = worker.app.task(base=Both, name="celerys", **known)(nothing)
    worker.app.finalize()

    for task in (ours, celerys):
        assert {name: getattr(task, name) for name in known} == known
        assert task.lock_options == SingletonTask.lock_options


@pytest.mark.parametrize("name", ["timeout", "limits"])  # foreign, and nearly one
def test_attribute_of_an_apps_task_class_is_refused_with_its_remedy(
    worker: Worker, own_tasks: None, name: str
) -> None:
    """Without an app, its class is not known when the task is decorated."""

    class Fetch(Task):
        abstract = True
        timeout = 1
        limits = 3

    worker.app.task_cls = Fetch
    option: dict[str, Any] = {name: 10}

    other = Celery(set_as_current=False)
    for app in (None, other):
        with pytest.raises(ConfigurationError, match=r"your own.*write base=") as text:
            singleton_task(app=app, **option)(nothing)
        assert f"There is no lock option {name!r}." in str(text.value)

    with pytest.raises(ConfigurationError, match=r"your own.*write base="):
        other.task(base=SingletonTask, lazy=False, shared=False, **option)(nothing)
    singleton_task(base=Fetch, name=f"{name} of a base class", **option)(nothing)
    worker.app.finalize()
    assert getattr(worker.app.tasks[f"{name} of a base class"], name) == 10


# -- options of a task among those of a call ----------------------------------------


@pytest.mark.parametrize("name", sorted({*LockOptions.names(), *FOREIGN} - {"timeout"}))
def test_lock_option_of_one_call_is_refused(worker: Worker, name: str) -> None:
    """Celery would pass it on, and nothing would read it."""
    job = worker.leased_job(name="job")
    options: dict[str, Any] = {name: "drop"}

    for call in (job.apply_async, job.s().set(**options).apply_async):
        with pytest.raises(ConfigurationError, match=f"^job: .*{name}") as refusal:
            call(**options)

        assert "Nothing was sent." in str(refusal.value)

    for run in (job.apply, job.s().set(**options).apply):
        with pytest.raises(ConfigurationError, match=f"^job: .*{name}") as refusal:
            run(**options)

        assert "Nothing ran." in str(refusal.value)


@pytest.fixture
def _current_app(worker: Worker) -> Iterator[None]:
    """Make the app the current one, as in a worker: Celery takes it for chains."""
    before = current_app._get_current_object()  # noqa: SLF001
    worker.app.set_current()
    yield
    before.set_current()


@pytest.mark.usefixtures("_current_app")
@pytest.mark.parametrize("how", ["chain", "link", "chain in a group"])
def test_lock_option_in_a_canvas_loses_no_call(
    worker: Worker, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A worker sends it on, so no caller is there. An error would lose both results."""
    job = worker.leased_job(name="job")
    first, then = worker.app.task(nothing, name="first").si(), job.si().set(ttl=5)
    if how == "link":
        first.link(then)
    elif how == "chain":
        first = chain(first, then)
    else:
        last = worker.app.task(nothing, name="last").si()
        first = chain(first, group(chain(then, last), chain(then, last)))
    first.apply_async()
    worker.collect()
    ((headers, (_, _, parts)),) = worker.published

    run = worker.run(
        worker.app.tasks["first"],
        id=headers["id"],
        chain=parts["chain"],
        callbacks=parts["callbacks"],
    )

    assert run.stored == states.SUCCESS
    sent = [headers["task"] for headers, _ in worker.published]
    assert sent == ["first", *["job"] * (2 if "group" in how else 1)]
    assert "ttl was given for one call. It has no effect." in caplog.text


def test_lock_option_in_the_body_of_a_chord_loses_no_call(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker that runs the last part of the chord sends it."""
    body = worker.leased_job(name="job").si().set(ttl=5)
    part = worker.app.task(nothing, name="part")
    chord([part.si(), part.si()], body)()
    worker.collect()

    for headers, (_, _, parts) in list(worker.published):
        known = {name: headers[name] for name in ("id", "group")}
        run = worker.run(part, chord=parts["chord"], **known)
        assert run.stored == states.SUCCESS

    sent = [headers["task"] for headers, _ in worker.published]
    assert sent == ["part", "part", "job"]
    assert "ttl was given for one call. It has no effect." in caplog.text


@pytest.mark.parametrize("how", ["link", "body of a plain task"])
def test_lock_option_in_an_eager_canvas_is_refused(
    worker: Worker, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The caller is there. No line says that the call goes on without the option."""
    worker.app.conf.task_always_eager = True
    job = worker.leased_job(name="job")

    def send() -> None:
        if how != "link":
            job.apply_async(ttl=5)

    plain = worker.app.task(send, name="plain")

    with pytest.raises(ConfigurationError, match=r"ttl was given .* Nothing was sent"):
        plain.apply_async(link=job.si().set(ttl=5), throw=True)

    assert "It has no effect" not in caplog.text


def test_lock_option_that_a_worker_sends_on_is_not_in_the_message(
    worker: Worker,
) -> None:
    """A broker is given what it must store, and cannot store a ``timedelta``."""
    job, stored = worker.leased_job(name="job"), []

    def note(properties: dict[str, Any], **_: object) -> None:
        stored.append({*properties} & {"ttl", "limit", "priority"})

    def send() -> None:
        job.apply_async(ttl=timedelta(seconds=5), limit=2, priority=3)

    signals.before_task_publish.connect(note)
    run = worker.run(worker.app.task(send, name="plain"))

    assert run.stored == states.SUCCESS
    assert stored == [{"priority"}]


class Passing(Task):
    """A base class of a project, with an ``apply_async`` of its own."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Pass everything on."""
        return super().apply_async(*args, **options)


@pytest.mark.parametrize("parent", [None, "the call before it in a chain"])
@pytest.mark.parametrize("base", [Task, Passing])
def test_lock_option_of_one_retry_fails_the_call(
    worker: Worker, base: type[Task], parent: str | None
) -> None:
    """A message that cannot be sent would be rejected: no result would ever come."""

    @singleton_task(app=worker.app, base=base, name="job", key=KEY, bind=True)
    def job(self: Any) -> None:
        self.retry(ttl=5)

    run = worker.run(job, parent_id=parent)

    assert run.stored == states.FAILURE
    assert isinstance(run.result, ConfigurationError)
    assert "@singleton_task(ttl=...)" in str(run.result)


def test_retry_that_has_no_key_fails_the_call(worker: Worker) -> None:
    """Its arguments cannot be reduced to a key. They are refused as those of a call."""

    @singleton_task(app=worker.app, name="job", key="{n}", bind=True)
    def job(self: Any, n: object) -> None:
        self.retry(args=(object(),))

    run = worker.run(job, 1)

    assert run.stored == states.FAILURE
    assert isinstance(run.result, FingerprintError)


def test_retry_of_a_refused_call_that_is_refused_fails_it(worker: Worker) -> None:
    """Celery's ``autoretry_for`` is asked after the policy, outside of the body."""

    @worker.task(
        key="{n}",
        on_conflict="raise",
        autoretry_for=(DuplicateTask,),
        retry_kwargs={"args": (object(),)},
    )
    def job(n: object) -> None: ...

    with worker.held(key="1"):
        run = worker.run(job, 1)

    assert run.stored == states.FAILURE
    assert isinstance(run.result, FingerprintError)


@pytest.mark.parametrize("requeue", [True, False])
def test_message_that_a_body_rejects_is_rejected(
    worker: Worker, *, requeue: bool
) -> None:
    """Its reason may be an error of this package. It is no retry that was refused."""
    reason = LockHeld("Another lock is held.", key="another")

    @singleton_task(app=worker.app, name="job", key=KEY)
    def job() -> None:
        raise Reject(reason, requeue=requeue)

    run = worker.run(job)

    assert (run.state, run.stored) == (states.REJECTED, states.PENDING)


@pytest.mark.parametrize("requeue", [True, False])
def test_message_that_a_last_retry_rejects_is_rejected(
    worker: Worker, *, requeue: bool
) -> None:
    """``retry(exc=Reject(...))`` raises it when no retry is left: for a dead letter."""
    reason = LockHeld("Another lock is held.", key="another")

    @singleton_task(app=worker.app, name="job", key=KEY, bind=True)
    def job(self: Any) -> None:
        self.retry(exc=Reject(reason, requeue=requeue), max_retries=0)

    run = worker.run(job)

    assert (run.state, run.stored) == (states.REJECTED, states.PENDING)


def test_stamp_may_have_the_name_of_a_lock_option(worker: Worker) -> None:
    """Celery keeps the stamps of a call among its options."""
    call = worker.leased_job(name="job").s()
    call.stamp(key="red", limit=3)

    call.apply_async()
    call.apply()

    worker.collect()
    ((headers, _),) = worker.published
    assert headers["stamps"] == {"key": "red", "limit": 3}


def test_options_of_kombu_and_of_base_classes_are_passed_on(worker: Worker) -> None:
    """``timeout`` is also one of a publication, and a base class may take any name."""
    taken = []

    class Tenants(Task):
        abstract = True

        def apply_async(self, *args: Any, key: str = "", **options: Any) -> Any:
            taken.append(key)
            return super().apply_async(*args, **options)

        def apply(self, *args: Any, key: str = "", **options: Any) -> Any:
            taken.append(key)
            return super().apply(*args, **options)

    class Before(Tenants, SingletonTask):
        abstract = True

    for name, base in (("after", Tenants), ("before", Before)):
        job = singleton_task(app=worker.app, base=base, name=name)(nothing)
        job.apply_async(key=name, timeout=5, priority=3, my_own=1)
        job.apply(key=name, timeout=5, priority=3, my_own=1)

    assert taken == ["after", "after", "before", "before"]


def test_base_class_may_take_an_option_of_a_retry(worker: Worker) -> None:
    """Its ``apply_async`` sends retries, too."""
    taken = []

    class Tenants(Task):
        abstract = True

        def apply_async(self, *args: Any, key: str = "", **options: Any) -> Any:
            taken.append(key)
            return super().apply_async(*args, **options)

    @singleton_task(app=worker.app, base=Tenants, name="job", bind=True)
    def job(self: Any) -> None:
        self.retry(key="red")

    assert worker.run(job).stored == states.RETRY
    assert taken == ["red"]


# -- the app's own task class --------------------------------------------------------


def test_task_class_of_the_app_leaves_celerys_tasks_alone(nodes: Any) -> None:
    """``Celery(task_cls="celery_redlock:SingletonTask")``: all tasks but Celery's."""
    with open_app(nodes, task_cls="celery_redlock:SingletonTask") as app:
        worker = Worker(app, nodes)

        @app.task(name="job", on_conflict="raise")
        def job(_: Any = None) -> bool:
            return current_lease() is not None

        app.finalize()

        builtins.add_backend_cleanup_task(app)
        builtins.add_map_task(app)
        assert [task.name for task in lock_tasks(app)] == ["job"]
        assert worker.run(job).result is True
        cleanup = app.tasks["celery.backend_cleanup"]
        assert worker.run(cleanup).stored == states.SUCCESS
        cleanup.delay()
        mapped = worker.run(app.tasks["celery.map"], job.s(), [()])
        assert mapped.result == [False]  # plain calls, as in any worker


def test_task_class_of_flasks_guide_surrounds_the_body_under_its_lock(
    nodes: Any, own_tasks: None
) -> None:
    """``celery_init_app``: a shared task has the context of the application."""
    flask = pytest.importorskip("flask")
    site = flask.Flask("site")

    class FlaskTask(Task):
        def __call__(self, *args: object, **kwargs: object) -> object:
            with site.app_context():
                return self.run(*args, **kwargs)

    @singleton_task(name="report", key="report:{customer}")
    def build_report(customer: int) -> list[str]:
        lease = current_lease()
        return [flask.current_app.name, lease.key if lease else "no lock"]

    with open_app(nodes, task_cls=FlaskTask) as app:
        app.finalize()
        run = Worker(app, nodes).run(app.tasks["report"], 7)

    assert run.result == ["site", "report:7"]


def test_arguments_are_not_checked_without_typing(worker: Worker) -> None:
    """``typing=False``: the message is sent, and the call fails in the worker."""

    @worker.task(typing=False, key=None, name="loose")
    def loose(a: int) -> int:
        return a

    loose.delay(1, 2, 3)

    run = worker.run(loose, 1, 2, 3)
    assert len(worker.published) == 1
    assert run.stored == states.FAILURE
    assert isinstance(run.result, TypeError)


@pytest.mark.parametrize("typing", [True, False])
def test_key_that_cannot_be_filled_in_is_an_error_of_the_package(
    worker: Worker, *, typing: bool
) -> None:
    """A number that is none is decoded with an error of ``decimal``."""

    @worker.task(key="pay:{amount:.2f}", typing=typing)
    def pay(amount: Any) -> None:
        pass

    with pytest.raises(FingerprintError):
        pay.lock_key({"__type__": "decimal", "__value__": "nothing"})


def test_bound_task_without_arguments_is_refused(worker: Worker) -> None:
    """The error says what to write."""
    with pytest.raises(ConfigurationError, match=r"Leave bind out, or write def job"):

        @worker.task(bind=True)
        def job() -> None:
            pass


# -- async def -----------------------------------------------------------------------


async def work() -> str:
    """Wait for nothing, and tell whether there is a lease."""
    await asyncio.sleep(0)
    return "held" if current_lease() else "free"


class Runs(Task):
    """A base class that runs coroutines."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run what the body returns."""
        return asyncio.run(super().__call__(*args, **kwargs))


def test_async_body_is_refused_when_it_is_decorated(worker: Worker) -> None:
    """The lock would end when the coroutine is made."""
    with pytest.raises(ConfigurationError, match=r"work is an async def.*asyncio.run"):
        worker.task()(work)


def test_async_body_is_refused_where_all_tasks_of_the_app_lock() -> None:
    """The lock of the app's own base class is not above its coroutine."""
    app = Celery(task_cls="celery_redlock:SingletonTask", set_as_current=False)

    with pytest.raises(ConfigurationError, match="work is an async def"):
        singleton_task(app=app)(work)


def test_async_body_of_a_class_is_refused_when_it_is_bound(worker: Worker) -> None:
    """Celery's own decorator, or a class."""

    class Work(SingletonTask):
        name = "work"

        async def run(self) -> None:
            pass

    with pytest.raises(ConfigurationError, match="work is an async def"):
        worker.app.register_task(Work())


def test_lock_holds_until_a_base_class_has_run_the_coroutine(worker: Worker) -> None:
    """Its ``__call__`` gets the coroutine under the lock."""
    run = worker.run(worker.task(base=Runs)(work))

    assert (run.stored, run.result) == (states.SUCCESS, "held")


@pytest.mark.filterwarnings("error")
def test_awaitable_that_a_body_returns_is_refused(worker: Worker) -> None:
    """It was not seen before. The coroutine is closed, and the lock is released."""

    @worker.task()
    def job() -> Any:
        return work()

    run = worker.run(job)

    assert run.stored == states.FAILURE
    assert "returned a coroutine" in str(run.result)
    assert worker.rival.inspect(KEY).holder is None


def test_base_class_above_the_lock_is_refused(worker: Worker) -> None:
    """It would run the coroutine after the lock has ended."""

    class Late(SingletonTask):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.run(super().__call__(*args, **kwargs))

    def job() -> Any:
        return work()

    run = worker.run(worker.task(base=Late)(job))

    assert "returned a coroutine" in str(run.result)
    assert not isinstance(run.result, Reject)
