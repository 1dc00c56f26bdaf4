"""``@singleton_task``: the decorator for tasks that run once at a time."""

from __future__ import annotations

import functools
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from celery import Task, current_app
from celery._state import _get_active_apps, connect_on_app_finalize
from celery.local import Proxy

from celery_redlock.options.lock_options import LockOptions, options_in
from celery_redlock.task.singleton_task import (
    SingletonTask,
    attributes_of,
    rule_of_body,
    without_lost,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from celery_redlock.options.arguments import TaskArguments

    P = ParamSpec("P")
    R = TypeVar("R")

    class _Decorator(Protocol):
        """The decorator with options, for type checkers."""

        def __call__(self, function: Callable[P, R], /) -> SingletonTask[P, R]: ...

    class _BoundDecorator(Protocol):
        """The decorator with ``bind=True``: a call of the task has no ``self``."""

        def __call__(
            self, function: Callable[Concatenate[Any, P], R], /
        ) -> SingletonTask[P, R]: ...


@overload
def singleton_task(
    function: Callable[P, R],
    /,
    *,
    app: Any = None,
    base: type[Task[..., Any]] | None = None,
    **options: Unpack[TaskArguments],
) -> SingletonTask[P, R]: ...
@overload
def singleton_task(
    *,
    app: Any = None,
    base: type[Task[..., Any]] | None = None,
    bind: Literal[True],
    **options: Unpack[TaskArguments],
) -> _BoundDecorator: ...
@overload
def singleton_task(
    *,
    app: Any = None,
    base: type[Task[..., Any]] | None = None,
    bind: bool = False,
    **options: Unpack[TaskArguments],
) -> _Decorator: ...
def singleton_task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    app: Any = None,
    base: type[Task] | None = None,
    **options: Any,
) -> Any:
    """Turn a function into a task that runs once at a time.

    ::

        @singleton_task                      # key = task name + its arguments
        def rebuild_index(): ...

        @singleton_task(app=app, key="invoice:{invoice_id}", on_conflict="retry")
        def send_invoice(invoice_id, force=False): ...

    The function is not wrapped: it is the body, and ``send_invoice(42)`` calls it.

    Args:
        function: The body of the task.
        app: The Celery app; without one it is a ``shared_task``.
        base: A task class of yours; the app's ``Task`` by default. The task is
            an instance of it and of ``SingletonTask``.
        **options: Lock options, and options of Celery's own decorator: ``name``,
            ``bind``, ``autoretry_for``, ...; see ``options.arguments``.

    Raises:
        ConfigurationError: A lock option does not exist, cannot be used, or names
            an argument that the function does not have.
        TypeError: The function is a task, or no function.
    """
    if function is None:
        return functools.partial(singleton_task, app=app, base=base, **options)
    if isinstance(function, (Proxy, Task)):
        raise TypeError(
            "@singleton_task was applied to a task. It makes a task of a function. "
            "Remove @app.task or @shared_task below it, and give it their options."
        )
    if (remedy := _remedy_of_body(function)) is not None:
        what = "class" if isinstance(function, type) else type(function).__name__
        what = "lambda" if what == "function" else what
        raise TypeError(
            f"@singleton_task was given a {what} in place of a function. {remedy}"
        )
    known = base or (app and app.Task)
    ours, celerys = LockOptions.split(options, foreign=attributes_of(known or Task))
    ours = {**options_in(celerys.pop("redlock", {})), **ours}
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    bound = celerys.get("bind", False)
    rule_of_body(name, function, LockOptions(**ours), known, bound=bound)
    celerys["redlock"] = ours
    if "dont_autoretry_for" in celerys:  # Celery then ignores the class's own
        celerys["dont_autoretry_for"] = without_lost(
            celerys.get("autoretry_for", getattr(known, "autoretry_for", ())),
            celerys["dont_autoretry_for"],
        )
    if app is None:
        return _share(function, base, celerys)
    return app.task(base=_composed(base or app.Task), **celerys)(function)


def _remedy_of_body(given: Any) -> str | None:
    """Return what to write in place of a body that Celery makes no task of, or None.

    It would fail at the first use of the task, or the worker would make an instance.
    """
    if isinstance(given, staticmethod | classmethod):
        return "Write the function outside of its class."
    if not callable(given):
        return "Name what you give: @singleton_task(app=app, key=...)."
    if isinstance(given, type):
        return "To make a task of it, derive it from SingletonTask."
    is_named = getattr(given, "__name__", "<lambda>") != "<lambda>"
    return None if is_named else "Write it with def: a task needs its name."


def _composed(base: type[Task]) -> type[Task]:
    """Return a subclass of this class and of ``SingletonTask``."""
    if issubclass(base, SingletonTask):
        return base
    about = {"abstract": True, "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (SingletonTask, base), about)


def _share(
    function: Callable[..., Any], base: type[Task] | None, options: dict[str, Any]
) -> Any:
    """Register with each app as ``shared_task`` does, on top of that app's ``Task``.

    ``shared_task`` itself takes one base class for all apps. Apps in Django have a
    ``Task`` of their own: without it ``delay_on_commit`` would be missing.
    """
    options = {**options, "shared": False, "lazy": False}

    def register(app: Any) -> Any:
        return app.task(base=_composed(base or app.Task), **options)(function)

    connect_on_app_finalize(register)
    for app in _get_active_apps():
        if app.finalized:
            register(app)

    def find() -> Any:
        name = options.get("name") or current_app.gen_task_name(
            function.__name__, function.__module__
        )
        return current_app.tasks[name]

    return Proxy(find)
