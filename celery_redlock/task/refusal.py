"""The exception in which a refused call ends: raised, and recognized by its tracer."""

from __future__ import annotations

from contextvars import ContextVar

_refusal: ContextVar[BaseException | None] = ContextVar(
    "celery_redlock_refusal", default=None
)


def end_refused(error: BaseException) -> BaseException:
    """Return the exception of a refused call, without traceback and context."""
    error = error.with_traceback(None)
    error.__context__ = None
    _refusal.set(error)
    return error


def was_refused(error: object) -> bool:
    """Tell whether a call has just ended in this exception, before its body began."""
    return error is not None and error is _refusal.get()
