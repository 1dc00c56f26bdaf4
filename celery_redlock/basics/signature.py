"""The signature of a callable as Python calls it."""

from __future__ import annotations

import inspect
import sys
from itertools import takewhile
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


# Modules whose wrappers pass on what they get. All of Django are made by contextlib.
_PASS_ON = {
    "celery.app.base",  # for ``pydantic=True``
    "contextlib",
    "pydantic._internal._validate_call",
    "sentry_sdk.crons.decorator",
    "tenacity",
}
_P = inspect.Parameter
_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):  # annotations that do not resolve must not be evaluated
    import annotationlib

    _OPTIONS = {"annotation_format": annotationlib.Format.STRING}


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature with which a callable is called.

    Of a function under a decorator it is that of the wrapper, as Celery reads it: the
    wrapper may inject an argument, or remove one. (``inspect`` follows
    ``__wrapped__``.) A wrapper that passes on what it gets can say so with a
    ``__signature__``; one without a signature, such as ``lru_cache``, does nothing
    else, and nor do those of some modules.

    Raises:
        ValueError: A builtin has no signature.
        TypeError: It is no callable.
    """
    while _passes_on(function):
        function = _inside(function)
    try:
        return inspect.signature(function, follow_wrapped=False, **_OPTIONS)
    except ValueError:
        if not hasattr(function, "__wrapped__"):
            raise
    return inspect.signature(function, **_OPTIONS)


def _passes_on(function: Callable[..., Any]) -> bool:
    module = getattr(function, "__globals__", {}).get("__name__")
    # beartype makes its wrappers in the module of the function.
    is_beartype = "__beartype_func" in (getattr(function, "__kwdefaults__", None) or {})
    return (module in _PASS_ON or is_beartype) and hasattr(function, "__wrapped__")


def _inside(wrapper: Any) -> Any:
    """Return what a wrapper wraps: a method, if the wrapper is one."""
    owner = getattr(wrapper, "__self__", None)
    inside = wrapper.__wrapped__
    return inside if owner is None else MethodType(inside, owner)


def takes_any(function: Callable[..., Any]) -> bool:
    """Tell whether a function does not say what it takes: ``*args, **kwargs``."""
    kinds = [one.kind for one in signature_of(function).parameters.values()]
    return kinds == [_P.VAR_POSITIONAL, _P.VAR_KEYWORD]


def positional_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments by position, where a wrapper takes any.

    They are those of the function inside, so that a call by position and one by name
    are the same. If the wrapper injects an argument in front, they are shifted; no two
    calls that fit the function get the same names by that.
    """
    if not takes_any(function):
        return []
    while hasattr(function, "__wrapped__"):
        function = _inside(function)
    inside = inspect.signature(function, **_OPTIONS).parameters.values()
    usual = takewhile(lambda one: one.kind is _P.POSITIONAL_OR_KEYWORD, inside)
    return [one.name for one in usual]


def hidden_parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameters of a wrapped function that its wrapper does not have.

    Each has the name of the wrapper.
    """
    if not hasattr(function, "__wrapped__"):
        return {}
    outside = signature_of(function).parameters
    inside = inspect.signature(inspect.unwrap(function), **_OPTIONS).parameters
    code = getattr(function, "__code__", None)
    wrapper = str(getattr(code, "co_qualname", None) or type(function).__qualname__)
    if code is not None and not hasattr(code, "co_qualname"):  # before Python 3.11
        wrapper = code.co_name
    return {name: wrapper for name in inside if name not in outside}
