"""Refuse bodies whose work begins after their lock has ended: coroutines, generators.

To call an ``async def`` function, or one with ``yield``, only makes a coroutine or a
generator. A lock that is held during the call ends before that has done anything.
Celery does not run it, but a base class may: its ``__call__`` gets it under the lock,
and the lock lasts until it returns.

A base class that collects calls, and runs the body with a list of them, does so without
a lock; it is refused, too.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task

from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

_REMEDY = (
    "Make it a plain function that calls asyncio.run(...), or returns a list, or give "
    "singleton_task(base=...) a task class whose __call__ runs the coroutine or the "
    "generator and returns its result."
)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "an async def function, and nothing runs its coroutine": (
        inspect.iscoroutinefunction
    ),
    "an async def function with yield, and nothing runs it": (
        inspect.isasyncgenfunction
    ),
    "a function with yield, and nothing runs its generator": (
        inspect.isgeneratorfunction
    ),
}


# What most bodies return; such a value needs no closer look.
PLAIN = (type(None), bool, int, float, str, bytes, list, dict, tuple)


def is_lazy(returned: object) -> bool:
    """Tell whether a body has returned work that is not done yet."""
    return (
        inspect.isawaitable(returned)
        or inspect.isasyncgen(returned)
        or inspect.isgenerator(returned)
    )


def refuse_batches(name: str, bases: tuple[type, ...]) -> None:
    """Refuse a base class of celery-batches."""
    for base in bases:
        if (base.__module__ or "").partition(".")[0] == "celery_batches":
            raise ConfigurationError(
                f"{name} has the base class {base.__qualname__} of celery-batches, "
                "which runs the body with a list of calls, and without a lock. Let the "
                "body of a plain Batches task take the lock: with lock(...)."
            )


def refuse_async(name: str, body: Callable[..., Any], bases: tuple[type, ...]) -> None:
    """Refuse a body that makes a coroutine or a generator, which none of these runs."""
    while isinstance(body, functools.partial):
        body = body.func
    called = (body, inspect.getattr_static(type(body), "__call__", None))
    kinds = [kind for kind, made_by in _KINDS.items() if any(map(made_by, called))]
    if not kinds:
        return
    if any("__call__" in vars(base) for base in bases if base not in (Task, object)):
        return
    raise ConfigurationError(
        f"{name} is {kinds[0]}. The lock would end before it begins. {_REMEDY}"
    )


def refuse_awaitable(name: str, returned: object) -> NoReturn:
    """Refuse what a body has returned under its lock, and close it."""
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    how = "consumed" if inspect.isgenerator(returned) else "awaited"
    raise ConfigurationError(
        f"{name} has returned a {type(returned).__qualname__}, which must still be "
        f"{how}: its work would begin after the lock has ended. {_REMEDY}"
    )
