"""Functions under a decorator: the key is that of what Celery calls."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Task, states

from celery_redlock import ConfigurationError, DuplicateTask
from tests.unit.tasks.support import Worker


def with_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inject a session as the first argument."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function("session", *args, **kwargs)

    return wrapper


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass all arguments on, and say so."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    vars(wrapper)["__signature__"] = inspect.signature(function)
    return wrapper


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass all arguments on, and say nothing about it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def in_context() -> Iterator[None]:
    """Open something around the body."""
    yield


def by_tenacity(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run the body again after an error."""
    tenacity = pytest.importorskip("tenacity")
    wrapped: Callable[..., Any] = tenacity.retry(function)
    return wrapped


def by_pydantic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the arguments."""
    pydantic = pytest.importorskip("pydantic")
    wrapped: Callable[..., Any] = pydantic.validate_call(function)
    return wrapped


def by_beartype(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the types of the arguments."""
    beartype = pytest.importorskip("beartype")
    wrapped: Callable[..., Any] = beartype.beartype(function)
    return wrapped


def by_sentry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Report the run as a check-in."""
    crons = pytest.importorskip("sentry_sdk.crons")
    wrapped: Callable[..., Any] = crons.monitor(monitor_slug="job")(function)
    return wrapped


UNRESOLVED = """
import functools
def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args: Missing, **kwargs: Missing) -> Missing:
        return function(*args, **kwargs)
    return wrapper
def body(a: Missing, b: Missing = None) -> list[Missing]: return a
def bound(self: Missing, a: Missing, b: Missing = None) -> Missing: return a
def key(a: Missing) -> Missing: return f"k:{a}"
def policy(conflict: Missing) -> Missing: return "skip"
"""


@pytest.mark.parametrize(
    "future",
    [
        "from __future__ import annotations",
        pytest.param(
            "",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 14), reason="Python 3.14 evaluates them later"
            ),
        ),
    ],
)
def test_annotations_that_do_not_resolve_are_not_evaluated(
    worker: Worker, future: str
) -> None:
    """Names that are imported for type checkers only are none when a call is made."""
    code = compile(future + UNRESOLVED, "unresolved.py", "exec", dont_inherit=True)
    names: dict[str, Any] = {"__name__": "unresolved"}
    exec(code, names)  # noqa: S102  (a program of this test)
    wrapped, policy = names["wrapped"], names["policy"]
    hashed = worker.task(name="hashed", key=None, on_conflict=policy)
    own = worker.task(name="own", key=names["key"], on_conflict=wrapped(policy))
    bound = worker.task(name="bound", key=wrapped(names["key"]), bind=True)

    task = hashed(wrapped(names["body"]))
    assert worker.run(task, "x").result == "x"
    assert task.lock_key("x") != task.lock_key("y")
    for task in (own(names["body"]), bound(names["bound"])):
        assert task.lock_key("x") == "k:x"
        assert worker.run(task, "x").result == "x"


def test_argument_that_a_decorator_injects_is_none_of_the_call(worker: Worker) -> None:
    """The call fits the wrapper, so it is published and runs."""

    @worker.task(key=None, unique_while="queued")
    @with_session
    def sync(session: str, account: str, verbose: bool = False) -> Any:  # noqa: FBT002
        return [session, account, verbose]

    first = sync.delay("acme")

    assert sync.delay("acme").id == first.id
    assert worker.run(sync, "acme", id=first.id).result == ["session", "acme", False]
    keys = {sync.lock_key("a", "b"), sync.lock_key("a"), sync.lock_key("b")}
    assert len(keys) == 3


def test_bound_task_may_have_a_decorator_that_injects(worker: Worker) -> None:
    """Celery passes the task first; the wrapper takes what comes."""

    def with_number(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(self: Any, *args: Any) -> Any:
            return function(self, 7, *args)

        return wrapper

    @worker.task(key=None, bind=True)
    @with_number
    def job(self: Any, number: int, account: str) -> Any:
        return [self.name, number, account]

    assert worker.run(job, "acme").result == ["job", 7, "acme"]
    assert job.lock_key("acme") != job.lock_key("other")


@pytest.mark.parametrize("option", [{"key": "{account}"}, {"unique_on": ["account"]}])
def test_name_that_a_decorator_hides_is_refused(
    worker: Worker, option: dict[str, Any]
) -> None:
    """The error says which wrapper hides it, and what to do."""
    with pytest.raises(ConfigurationError, match=r"hides it: Celery calls .*wrapper"):

        @worker.task(**{"key": None, **option})
        @with_session
        def job(session: str, account: str) -> None: ...


def test_decorator_that_says_that_it_injects_nothing_hides_nothing(
    worker: Worker,
) -> None:
    """A ``__signature__`` of the wrapper counts, for Celery as well."""

    @worker.task(key="{account}")
    @timed
    def job(account: str) -> str:
        return account

    assert job.lock_key("acme") == job.lock_key(account="acme") == "acme"
    assert worker.run(job, "acme").stored == states.SUCCESS


def without_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inject a session by its name, and say what is left of the arguments."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, session="session", **kwargs)

    signature = inspect.signature(function)
    left = [one for name, one in signature.parameters.items() if name != "session"]
    vars(wrapper)["__signature__"] = signature.replace(parameters=left)
    return wrapper


@pytest.mark.parametrize("key", [None, "{account}"])
@pytest.mark.parametrize("wrap", [traced, without_session])
def test_base_class_may_wrap_the_body(
    worker: Worker, wrap: Callable[..., Any], key: str | None
) -> None:
    """It does so in each task that it makes, and says there what the task takes."""

    class Wrapping(Task):
        abstract = True
        run: Any

        def __init__(self) -> None:
            super().__init__()
            self.run = wrap(self.run)

    @worker.task(base=Wrapping, key=key)
    def job(account: str, session: str) -> Any:
        return [account, session]

    args = ("acme",) if wrap is without_session else ("acme", "own")
    by_name = dict(zip(("account", "session"), args, strict=False))
    assert job.lock_key(*args) == job.lock_key(**by_name)
    assert worker.run(job, *args).result in (["acme", "session"], ["acme", "own"])


@pytest.mark.parametrize("bind", [False, True])
def test_call_by_position_and_by_name_is_one_call_under_a_decorator(
    worker: Worker, bind: bool
) -> None:
    """A wrapper may not say what it takes: the function inside names the arguments."""

    def bound(self: Any, account: str, days: int = 7) -> None: ...
    def free(account: str, days: int = 7) -> None: ...

    job = worker.task(name="job", key=None, bind=bind)(traced(bound if bind else free))

    assert job.lock_key("acme") == job.lock_key(account="acme")
    assert job.lock_key("acme", 8) == job.lock_key("acme", days=8)
    assert job.lock_key("acme") != job.lock_key("other")
    assert job.lock_key("acme") != job.lock_key(days="acme")


@pytest.mark.parametrize(
    "wrap", [in_context(), by_beartype, by_pydantic, by_sentry, by_tenacity]
)
@pytest.mark.parametrize("key", [None, "account:{account}"])
def test_wellknown_decorator_hides_nothing(
    worker: Worker, wrap: Callable[..., Any], key: str | None
) -> None:
    """Decorators that are known to pass all arguments on have those of the body."""

    @worker.task(name="job", key=key)
    @wrap
    @wrap
    def job(account: str, days: int = 7) -> Any:
        return [account, days]

    keys = {job.lock_key("acme"), job.lock_key(account="acme"), job.lock_key("acme", 7)}
    assert len(keys) == 1
    assert worker.run(job, "acme").result == ["acme", 7]


@pytest.mark.parametrize("wrap", [in_context(), traced])
def test_method_of_an_object_may_have_a_decorator(
    worker: Worker, wrap: Callable[..., Any]
) -> None:
    """The object is no argument of the call."""

    class Service:
        @wrap
        def sync(self, account: str) -> Any:
            return [account]

    job = worker.task(name="job", key=None)(Service().sync)

    assert job.lock_key("acme") == job.lock_key(account="acme")
    assert worker.run(job, "acme").result == ["acme"]


def test_class_that_wraps_a_function_is_called_itself(worker: Worker) -> None:
    """``functools.update_wrapper`` on an instance is the same thing."""

    class Injecting:
        def __init__(self, function: Callable[..., Any]) -> None:
            functools.update_wrapper(self, function)
            self.function = function

        def __call__(self, *args: Any) -> Any:
            return self.function("session", *args)

    @worker.task(key=None, name="job")
    @Injecting
    def job(session: str, account: str) -> Any:
        return [session, account]

    assert worker.run(job, "acme").result == ["session", "acme"]


def test_key_function_may_be_wrapped(worker: Worker) -> None:
    """The wrapper gets the arguments by name that the function inside takes."""

    @with_session
    def key(session: str, account: str) -> str:
        return f"{session}:{account}"

    @worker.task(key=key)
    def job(account: str, verbose: bool = False) -> None:  # noqa: FBT002
        """Do nothing."""

    assert job.lock_key("acme") == "session:acme"


def test_key_function_may_be_cached(worker: Worker) -> None:
    """``lru_cache`` has no signature of its own, and passes arguments on."""

    @functools.lru_cache
    def key(account: str) -> str:
        return f"account:{account}"

    @worker.task(key=key)
    def job(account: str, verbose: bool = False) -> None:  # noqa: FBT002
        """Do nothing."""

    assert job.lock_key("acme") == "account:acme"


def test_key_function_may_take_arguments_by_position_only(worker: Worker) -> None:
    """So may the body."""

    def key(account: str, /, number: int) -> str:
        return f"{account}:{number}"

    @worker.task(key=key)
    def job(account: str, /, number: int = 0) -> None:
        """Do nothing."""

    assert job.lock_key("acme") == "acme:0"
    assert job.lock_key("acme", number=2) == "acme:2"
    assert worker.run(job, "acme").stored == states.SUCCESS


def test_policy_may_be_wrapped(worker: Worker) -> None:
    """A wrapper is called with the conflict, and may add arguments."""

    @with_session
    def policy(session: str, conflict: Any) -> str:
        return "raise" if conflict.task == "job" and session else "skip"

    job = worker.leased_job(on_conflict=policy)

    assert isinstance(worker.refuse(job).result, DuplicateTask)
