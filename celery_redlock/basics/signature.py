"""The signature of a callable as Python calls it."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
    else, and nor does the one that Celery makes for ``pydantic=True``.

    Raises:
        ValueError: A builtin has no signature.
        TypeError: It is no callable.
    """
    if getattr(function, "__globals__", {}).get("__name__") == "celery.app.base":
        function = getattr(function, "__wrapped__", function)
    try:
        return inspect.signature(function, follow_wrapped=False, **_OPTIONS)
    except ValueError:
        if not hasattr(function, "__wrapped__"):
            raise
    return inspect.signature(function, **_OPTIONS)


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
