"""``@singleton_task`` makes a Celery task like any other, which locks."""

from __future__ import annotations

import functools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import celery
import pytest
from celery import Celery, Task
from celery.worker.request import Request
from pydantic import BaseModel

from celery_redlock import (
    ConfigurationError,
    DuplicateTask,
    FingerprintError,
    LockLost,
    LockOptions,
    SingletonTask,
    singleton_task,
)
from celery_redlock.task.request import RedlockRequest


class HouseTask(Task):
    """A user's base class."""

    abstract = True

    def delay_on_commit(self) -> str:
        """Return a text, like a method that only Django's task class has."""
        return "committed"


class DirectTask(Task):
    """A user's base class that names Celery's class where others write ``super()``."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the body as Celery does."""
        return Task.__call__(self, *args, **kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish as Celery does."""
        return celery.Task.apply_async(self, args, kwargs, **options)


class HouseRequest(Request):
    """A user's request class."""


class Order(BaseModel):
    """The argument of a typed task."""

    number: int
    note: str = "none"


class HouseApp(Celery):
    """An app whose tasks have a base of their own, as in a Django project."""

    task_cls = HouseTask


def job_of(app: Celery, **options: Any) -> Any:
    """Return a task without arguments, with these options."""

    @singleton_task(app=app, shared=False, **options)
    def job() -> None: ...

    return job


# -- the task that it makes --------------------------------------------------------


def test_function_stays_a_function(app: Celery) -> None:
    """A plain call runs the body, and Celery sees the function's own signature."""

    @singleton_task(app=app, shared=False)
    def add(left: int, right: int = 1) -> int:
        """Add two numbers."""
        return left + right

    assert add(2, right=3) == 5
    assert add.__doc__ == "Add two numbers."
    assert add.name.endswith("add")


def test_options_of_celery_pass_through(app: Celery) -> None:
    """Options that are no lock options are passed to Celery."""
    job = job_of(app, name="n", max_retries=7, acks_late=True, flavour="mint")

    assert (job.name, job.max_retries, job.acks_late) == ("n", 7, True)
    assert job.flavour == "mint"


def test_base_that_locks_already_is_taken_as_it_is(app: Celery) -> None:
    """A base of the user's may bring lock options of its own."""

    class Slow(SingletonTask):
        redlock = {"ttl": 60, "key": "slow"}  # noqa: RUF012  (as users write it)

    job = job_of(app, base=Slow, key="mine")

    assert (job.lock_options.ttl, job.lock_options.key) == (60, "mine")


def test_app_with_its_own_task_class_keeps_it() -> None:
    """The task has the app's task class as its base if no base is named."""
    app = HouseApp("house", set_as_current=False)
    job = job_of(app)

    assert job.delay_on_commit() == "committed"


def test_without_an_app_each_app_has_the_task_on_its_own_base() -> None:
    """It is shared: an app made before and one made after have it."""
    before = HouseApp("before", set_as_current=False)
    before.finalize()

    @singleton_task(name="shared-job", key="shared")
    def job() -> str:
        return "ran"

    after = Celery("after", set_as_current=False)

    for app in (before, after):
        task = app.tasks["shared-job"]
        assert isinstance(task, SingletonTask)
        assert task.app is app
        assert task() == "ran"
    assert before.tasks["shared-job"].delay_on_commit() == "committed"
    assert not hasattr(after.tasks["shared-job"], "delay_on_commit")


@pytest.mark.parametrize("option", ["shared", "lazy"])
def test_option_about_apps_has_no_effect_without_an_app(option: str) -> None:
    """It is one of Celery's own decorator, which takes it, too."""
    options: dict[str, Any] = {"name": f"says-{option}", option: True}

    @singleton_task(**options)
    def job() -> str:
        return "ran"

    app = Celery("later", set_as_current=False)

    assert app.tasks[f"says-{option}"]() == "ran"


def test_second_application_is_refused(app: Celery) -> None:
    """The decorator accepts a function, not a task."""
    job = job_of(app)

    with pytest.raises(TypeError, match=r"Remove @app.task"):
        singleton_task(job)


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("options", [{}, {"autoretry_for": (OSError,)}])
@pytest.mark.parametrize("call", ["apply", "__call__"])
def test_celerys_decorator_around_ours_does_not_run_the_body_without_its_lock(
    app: Celery, call: str, options: dict[str, Any], *, bind: bool
) -> None:
    """Celery would take the locked task for a body, and call it as a function."""
    ran = []

    @app.task(shared=False, bind=bind, **options)
    @singleton_task(app=app, name="order.pay", key="order:{number}")
    def pay(number: int) -> None:
        ran.append(number)

    with pytest.raises(ConfigurationError, match=r"Remove that decorator") as caught:
        pay(7) if call == "__call__" else pay.apply((7,)).get()
    assert "order.pay" in str(caught.value)
    assert not ran


def test_task_calls_a_locked_task_as_a_function(app: Celery) -> None:
    """A call as a function takes no lock, and is not refused."""

    @singleton_task(app=app, shared=False, key="order:{number}")
    def inner(number: int) -> int:
        return number + 1

    @app.task(shared=False)
    def outer() -> Any:
        return inner(3)

    assert outer.apply().get() == 4


@pytest.mark.parametrize(
    "given", [Celery("shop", set_as_current=False), "invoice:{invoice_id}"]
)
def test_option_without_its_name_is_refused(given: Any) -> None:
    """The error tells the way to write it."""
    with pytest.raises(TypeError, match=r"@singleton_task\(app=app, key="):
        singleton_task(given)


class Work:
    """A class, which a project may decorate by mistake, or a part of it."""

    @staticmethod
    def of_no_instance(number: int) -> int:
        """Return the number."""
        return number

    @classmethod
    def of_a_class(cls, number: int) -> int:
        """Return the number."""
        return number

    def __call__(self, number: int) -> int:
        """Return the number."""
        return number


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda number: number, "a lambda in place of a function.* Write it with def"),
        (functools.partial(abs, 3), "a partial in place of a function.* with def"),
        (Work(), "a Work in place of a function.* with def"),
        (Work, "a class in place of a function.* derive it from SingletonTask"),
        (vars(Work)["of_no_instance"], "a staticmethod in .* outside of its class"),
        (vars(Work)["of_a_class"], "a classmethod in .* outside of its class"),
    ],
)
def test_body_that_celery_cannot_make_a_task_of_is_refused(
    app: Celery, given: Any, said: str
) -> None:
    """Celery fails at the first use, with an error about its own code, or runs none."""
    for where in ({}, {"app": app}):
        with pytest.raises(TypeError, match=f"@singleton_task was given {said}"):
            singleton_task(name="work", **where)(given)


def test_callable_with_a_name_is_a_body(app: Celery) -> None:
    """A decorator of a project may be a class, and return its instance."""
    wrapped: Any = functools.update_wrapper(Work(), Work.of_no_instance)

    task = singleton_task(wrapped, app=app, name="wrapped", shared=False)

    assert task(3) == 3
    assert task.lock_key(3)


def test_first_use_in_several_threads_at_once_finds_the_whole_task() -> None:
    """The first requests of a web server come together, and Celery makes tasks late."""
    app = Celery("web", set_as_current=False)
    is_half_made, has_been_used = threading.Event(), threading.Event()

    class SlowTask(Task):
        abstract = True

        @classmethod
        def on_bound(cls, app: Celery) -> None:
            super().on_bound(app)
            if not is_half_made.is_set():
                is_half_made.set()
                has_been_used.wait(30)

    @singleton_task(app=app, base=SlowTask, key="stock:{shelf}")
    def count(shelf: int) -> None: ...

    with ThreadPoolExecutor(1) as requests:
        first = requests.submit(lambda: count.lock_key(1))
        assert is_half_made.wait(30)
        try:
            assert count.lock_key(2) == "stock:2"
        finally:
            has_been_used.set()
        assert first.result() == "stock:1"


def test_task_that_was_refused_once_is_refused_again() -> None:
    """No half of it stays registered."""
    app = Celery("web", set_as_current=False)
    app.conf.task_annotations = {"count": {"redlock": {"ttl": -1}}}

    @singleton_task(app=app, name="count", key="stock:{shelf}")
    def count(shelf: int) -> None: ...

    for _ in range(2):
        with pytest.raises(ConfigurationError, match="ttl is -1"):
            count.lock_key(1)


def test_celerys_own_decorator_does_the_same(app: Celery) -> None:
    """``base=SingletonTask`` and ``redlock={...}`` are all it takes."""

    @app.task(shared=False, base=SingletonTask, redlock={"key": "job:{number}"})
    def job(number: int) -> None: ...

    assert job.lock_key(4) == job.lock_key(number=4) == "job:4"


def test_class_is_a_task_like_any_other(app: Celery) -> None:
    """A task as a class has its options as an attribute."""

    class ClassTask(SingletonTask):
        name = "class-based"
        redlock = {"unique_on": ["number"]}  # noqa: RUF012  (as users write it)

        def run(self, number: int, trace: str = "") -> None: ...

    task = app.register_task(ClassTask())

    assert task.lock_key(1, "x") == task.lock_key(1, trace="y") != task.lock_key(2)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_run_of_a_class_may_be_no_method_of_its_task(app: Celery, kind: Any) -> None:
    """Its first parameter is an argument then, or the class, which is bound already."""

    def static(number: int) -> int:
        return number

    def of_class(cls: type, number: int) -> int:
        return number

    run = kind(static if kind is staticmethod else of_class)
    made = type("Made", (SingletonTask,), {"name": "made", "run": run})

    task = app.register_task(made())

    assert task.lock_key(1) == task.lock_key(number=1) != task.lock_key(2)


def test_tasks_of_one_class_or_without_a_name_have_keys_of_their_own(
    app: Celery,
) -> None:
    """Celery gives a name to the instance that is registered, and none to its class."""

    class Crawl(SingletonTask):
        def __init__(self, name: str | None = None) -> None:
            self.name = name

        def run(self, page: int) -> None: ...

    class Index(SingletonTask):
        def run(self, page: int) -> None: ...

    named = [app.register_task(Crawl(name)) for name in ("a", "b", None)]
    tasks = [*named, app.register_task(Index())]

    keys = [task.lock_key(1) for task in tasks]
    assert [key.rpartition(":")[0] for key in keys] == [task.name for task in tasks]
    assert len({task.name for task in tasks}) == 4
    assert tasks[0].lock_key(1) == keys[0]


def test_pydantic_models_have_the_key_of_what_is_sent(app: Celery) -> None:
    """A view that holds a model and a worker that got JSON mean the same call."""

    @singleton_task(app=app, shared=False, pydantic=True)
    def job(order: Order) -> None: ...

    wire: Any = {"note": "none", "number": 3}
    assert job.lock_key(Order(number=3)) == job.lock_key(wire)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ({"key": "order:{order.number}"}, "order:3"),
        ({"key": lambda order: f"order:{order['number']}"}, "order:3"),
        ({"key": "copies:{copies}"}, "copies:1"),
        ({"unique_on": ["copies"]}, None),
    ],
    ids=["field", "callable", "default", "unique_on"],
)
@pytest.mark.parametrize("bind", [False, True])
def test_arguments_of_a_task_with_pydantic_have_names(
    app: Celery, rule: dict[str, Any], key: str | None, *, bind: bool
) -> None:
    """Celery puts a wrapper without a signature around the function."""

    def job(order: Order, copies: int = 1) -> None: ...
    def bound(self: Any, order: Order, copies: int = 1) -> None: ...

    options = {"app": app, "shared": False, "pydantic": True, "bind": bind, **rule}
    task = singleton_task(**options)(bound if bind else job)

    of_message = task.lock_key({"number": 3})
    assert of_message == (key or of_message)
    if hasattr(Task, "_dump_pydantic_arguments"):  # else they are sent as they are
        assert task.lock_key(Order(number=3)) == of_message
    with pytest.raises(FingerprintError, match="order"):
        task.lock_key()


def test_request_class_of_the_user_is_composed(app: Celery) -> None:
    """The request class of the user, a class or a name, is kept as a base."""
    plain = job_of(app, Request="celery.worker.request:Request")
    path = "tests.unit.tasks.test_decorator:HouseRequest"
    house = job_of(app, name="house", Request=path)

    assert plain.Request == "celery_redlock.task.request:RedlockRequest"
    assert issubclass(house.Request, RedlockRequest)
    assert issubclass(house.Request, HouseRequest)


# -- calls and options that it refuses ---------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_conflit": "skip"}, "on_conflict"),
        ({"redlock": {"tll": 3}}, "ttl"),
        ({"key": "job:{who}"}, "who"),
    ],
)
def test_wrong_option_is_refused_at_decoration(
    app: Celery, options: dict[str, Any], message: str
) -> None:
    """The error at import names the wrong option, or the nearest right one."""
    with pytest.raises(ConfigurationError, match=message):

        @singleton_task(app=app, shared=False, **options)
        def job(number: int = 0) -> None: ...


def test_wrong_option_with_celerys_decorator_names_the_task(app: Celery) -> None:
    """Celery creates tasks late, so the error names the task."""

    @app.task(shared=False, base=SingletonTask, redlock={"tll": 3})
    def spoilt() -> None: ...

    with pytest.raises(ConfigurationError, match=r"spoilt.*ttl"):
        spoilt.name  # noqa: B018  (makes the task)


@pytest.mark.parametrize(
    "attributes",
    [
        {"redlock": LockOptions(key="k")},
        {"redlock": "k"},
        {"lock_options": {"key": "k"}},
        {"lock_options": LockOptions(key="k")},
    ],
)
def test_options_of_a_class_are_a_dict(attributes: dict[str, Any]) -> None:
    """All else that looks like options is refused, and not passed over."""
    with pytest.raises(ConfigurationError, match=r"^classy: .*redlock .*{"):
        type("Classy", (SingletonTask,), {"name": "classy", **attributes})


@pytest.mark.parametrize("redlock", [None, "k", LockOptions(key="k")])
def test_options_in_a_decorator_are_a_dict(app: Celery, redlock: Any) -> None:
    """The error says so, and is no TypeError about the code of this package."""
    with pytest.raises(ConfigurationError, match=r"^redlock is .*{"):
        singleton_task(app=app, redlock=redlock)(Work.of_no_instance)


def test_self_is_no_argument_of_a_bound_task(app: Celery) -> None:
    """The key of a bound task is made of what callers pass."""

    @singleton_task(app=app, shared=False, bind=True, unique_on=["number"])
    def job(self: Task, number: int) -> None: ...

    assert job.lock_key(1) != job.lock_key(2)
    with pytest.raises(ConfigurationError, match="self"):

        @singleton_task(app=app, shared=False, bind=True, unique_on=["self"])
        def other(self: Task, number: int) -> None: ...


def test_call_that_fits_no_signature_is_not_published(app: Celery) -> None:
    """Such a call has no key, so the publisher gets an error."""

    @singleton_task(app=app, shared=False)
    def job(number: int) -> None: ...

    with pytest.raises(FingerprintError, match="number"):
        job.delay()  # type: ignore[call-arg]


def test_missing_self_names_bind(app: Celery) -> None:
    """Callers do not pass it, and Celery passes it to a bound task only."""

    @singleton_task(app=app, shared=False)
    def job(self: Task, number: int) -> None: ...

    for args, kwargs in (((1,), {}), ((), {"number": 1})):
        with pytest.raises(FingerprintError, match=r"missing.*bind=True is missing"):
            job.apply_async(args, kwargs)


@pytest.mark.parametrize("args", [(), (1, 2, 3)])
def test_call_that_bind_would_not_repair_is_to_be_corrected(
    app: Celery, args: tuple[int, ...]
) -> None:
    """With ``self``, an argument is still missing, or there are more than it takes."""

    @singleton_task(app=app, shared=False)
    def job(self: Task, number: int) -> None: ...

    with pytest.raises(FingerprintError, match="correct the call") as refusal:
        job.apply_async(args)
    assert "bind" not in str(refusal.value)


def test_call_that_skips_ours_is_warned_about(app: Celery) -> None:
    """A ``__call__`` of a subclass without ``super()`` would run without a lock."""

    class Bypass(SingletonTask):
        name = "bypass"

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.run(*args, **kwargs)

        def run(self) -> None: ...

    with pytest.warns(RuntimeWarning, match="takes no lock"):
        app.register_task(Bypass())


def test_call_that_names_celerys_task_is_warned_about(app: Celery) -> None:
    """``Task.__call__`` in a subclass does not lead to ours."""

    class Bypass(SingletonTask):
        name = "bypass"
        __call__ = DirectTask.__call__

        def run(self) -> None: ...

    with pytest.warns(RuntimeWarning, match=r"super\(\).__call__\(\).*takes no lock"):
        app.register_task(Bypass())


def test_publishing_that_names_celerys_task_is_warned_about(app: Celery) -> None:
    """``Task.apply_async`` in a base class publishes without a claim or a place."""

    class Bypass(SingletonTask):
        name = "bypass"
        apply_async = DirectTask.apply_async
        redlock: ClassVar[Any] = {"on_conflict": "buffer_one"}

        def run(self) -> None: ...

    fault = r"super\(\)\.apply_async\(\).* without a look for duplicates"
    with pytest.warns(RuntimeWarning, match=fault):
        app.register_task(Bypass())
    with pytest.warns(RuntimeWarning, match=fault):
        job_of(app, base=DirectTask, unique_while="queued").lock_key()


def test_base_class_that_names_celerys_task_may_stand_behind_ours(app: Celery) -> None:
    """The lock is taken in front of its ``__call__``, and nothing is claimed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job_of(app, base=DirectTask).lock_key()


def test_call_that_uses_super_is_not_warned_about(app: Celery) -> None:
    """A ``__call__`` that uses ``super()`` takes the lock."""

    class Polite(SingletonTask):
        name = "polite"

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

        def run(self) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.register_task(Polite())


@pytest.mark.parametrize("is_named_alike", [True, False])
def test_call_in_a_decorator_is_not_warned_about(
    app: Celery, *, is_named_alike: bool
) -> None:
    """An annotation of Celery may wrap ``__call__``, which still takes the lock."""

    def timed(call: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return functools.wraps(call)(wrapper) if is_named_alike else wrapper

    app.conf.task_annotations = {"*": {"@__call__": timed}}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = job_of(app)

    assert vars(task.__class__)["__call__"] is not SingletonTask.__call__


# -- autoretry ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "spared"),
    [
        ({}, True),
        ({"autoretry_for": (Exception,)}, True),
        ({"autoretry_for": (Exception,), "dont_autoretry_for": (KeyError,)}, True),
        ({"autoretry_for": (LockLost,)}, False),
        ({"autoretry_for": (LockLost,), "dont_autoretry_for": (KeyError,)}, False),
    ],
)
def test_lost_lock_is_autoretried_only_where_it_is_named(
    app: Celery, options: dict[str, Any], *, spared: bool
) -> None:
    """``autoretry_for=(Exception,)`` does not mean a lost lock."""
    job = job_of(app, **options)

    assert (LockLost in job.dont_autoretry_for) is spared


class Strict(Task):
    """A base class that says which errors are expected, and which not retried."""

    abstract = True
    throws = (ValueError,)
    autoretry_for = (Exception,)
    dont_autoretry_for = (KeyError,)


class Locked(SingletonTask):
    """A base class with a lock, and with nothing about errors."""

    abstract = True


@pytest.mark.parametrize("how", ["base=", "task_cls", "shared", "base classes"])
def test_base_class_says_what_is_expected_and_not_retried(
    how: str, own_tasks: None
) -> None:
    """Our own defaults stand in front of a base class, and hid what it says."""
    app = Celery("strict", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = ["redis://localhost:1/0"]
    if how != "base=":
        app.task_cls = Strict

    def job() -> None:
        """Do nothing."""

    task: Any
    if how == "base classes":
        about = {"name": "class", "run": staticmethod(job)}
        task = app.register_task(type("Both", (Locked, Strict), about)())
    elif how == "shared":
        # Celery gives it to other apps of this process as well, which may have a "job".
        singleton_task(job, name="strict shared")
        app.finalize()
        task = app.tasks["strict shared"]
    else:
        base = Strict if how == "base=" else None
        task = singleton_task(job, app=app, base=base, shared=False)

    assert task.throws == (ValueError, DuplicateTask)
    assert task.dont_autoretry_for == (KeyError, LockLost)


def test_annotation_adds_to_what_is_retried_and_expected(app: Celery) -> None:
    """``task_annotations`` replaces attributes of Celery when a task is bound."""
    given = {"dont_autoretry_for": (KeyError,), "throws": (ValueError,)}
    app.conf.task_annotations = {"job": given}

    @singleton_task(app=app, shared=False, name="job", autoretry_for=(Exception,))
    def job() -> None:
        """Do nothing."""

    assert job.dont_autoretry_for == (KeyError, LockLost)
    assert job.throws == (ValueError, DuplicateTask)


def test_retry_does_not_carry_our_header_on(app: Celery) -> None:
    """The base and the counts in a header are valid for one message only."""

    @singleton_task(app=app, shared=False, bind=True)
    def job(self: Task) -> None: ...

    job.push_request(
        id="x", args=[], kwargs={}, headers={"redlock": {"base": "b"}, "mine": 1}
    )
    try:
        signature = job.signature_from_request()
    finally:
        job.pop_request()

    assert signature.options["headers"] == {"mine": 1}
