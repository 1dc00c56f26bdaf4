"""Refuse bodies whose work begins after their lock has ended: coroutines.

To call an ``async def`` function only makes a coroutine. A lock that is held during
the call ends before the coroutine has done anything. Celery does not run coroutines,
but a base class may: its ``__call__`` gets the coroutine under the lock, and the lock
lasts until it returns.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task

from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["refuse_async", "refuse_awaitable"]

_REMEDY = (
    "Make it a plain function that calls asyncio.run(...), or give "
    "singleton_task(base=...) a task class whose __call__ runs the coroutine and "
    "returns its result."
)


def refuse_async(name: str, body: Callable[..., Any], bases: tuple[type, ...]) -> None:
    """Refuse an ``async def`` body, unless one of these base classes may run it.

    Raises:
        ConfigurationError: Nothing runs the coroutine.
    """
    while isinstance(body, functools.partial):
        body = body.func
    made_by = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    called = (body, inspect.getattr_static(type(body), "__call__", None))
    if not any(is_async(one) for is_async in made_by for one in called):
        return
    if any("__call__" in vars(base) for base in bases if base not in (Task, object)):
        return
    raise ConfigurationError(
        f"{name} is an async def function, and nothing runs its coroutine. The lock "
        f"would end before it begins. {_REMEDY}"
    )


def refuse_awaitable(name: str, returned: Any) -> NoReturn:
    """Refuse what a body has returned under its lock: it must still be awaited.

    Raises:
        ConfigurationError: Always. A coroutine is closed: it has not begun, and will
            not.
    """
    if inspect.iscoroutine(returned):
        returned.close()
    raise ConfigurationError(
        f"{name} has returned a {type(returned).__qualname__}, which must still be "
        f"awaited: its work would begin after the lock has ended. {_REMEDY}"
    )
