"""Say what has become of a call."""

from __future__ import annotations

from typing import Any

from celery_redlock.errors import LockUnavailable

__all__ = ["assert_skipped"]


def assert_skipped(result: Any, *, timeout: float = 10.0) -> BaseException:
    """Assert that a call did not run because somebody else held its lock.

    Args:
        result: What ``delay``, ``apply_async`` or ``apply`` returned.
        timeout: Seconds to wait for its end.

    Raises:
        AssertionError: It ended in another way, or did not end in time. The
            message says how it ended.

    Returns:
        Why, in words that name the holder: a `DuplicateTask`, or `QuorumUnreachable`
        for ``on_backend_error="skip"``. From ``apply`` it is Celery's ``Ignore``.
    """
    try:
        result.get(timeout=timeout, propagate=False)
    except Exception as error:
        # Celery's own TimeoutError, or what its result backend has to say.
        raise AssertionError(
            f"{result!r} did not end within {timeout:g} s: it is {result.state}. "
            "Does a worker run, and does the task keep its result?"
        ) from error
    state, why = result.state, result.result
    skipped = state == "REVOKED" and isinstance(why, LockUnavailable)
    # Eagerly there is nothing to store, so Celery only knows that it was ignored.
    ignored = state == "IGNORED" and isinstance(why, BaseException)
    if not (skipped or ignored):
        raise AssertionError(
            f"{result!r} was not skipped: it ended as {state} with {why!r}."
        )
    assert isinstance(why, BaseException)  # noqa: S101  (for the type checker)
    return why
