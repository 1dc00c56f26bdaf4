"""Assertions about the result of a call."""

from __future__ import annotations

from typing import Any

from celery_redlock.errors import LockUnavailable

__all__ = ["assert_skipped"]


def assert_skipped(result: Any, *, timeout: float = 10.0) -> BaseException:
    """Assert that a call did not run because its lock was held.

    Args:
        result: The result of ``delay``, ``apply_async`` or ``apply``.
        timeout: Seconds to wait for the end of the call.

    Raises:
        AssertionError: The call ended in another way, or did not end in time. The
            message says how it ended.

    Returns:
        The reason, which names the holder: a `DuplicateTask`, or `QuorumUnreachable`
        for ``on_backend_error="skip"``. From ``apply`` it is Celery's ``Ignore``.
    """
    try:
        result.get(timeout=timeout, propagate=False)
    except Exception as error:
        # Celery's TimeoutError, or an error of the result backend.
        raise AssertionError(
            f"{result!r} did not end within {timeout:g} s: it is {result.state}. "
            "Does a worker run, and does the task keep its result?"
        ) from error
    state, why = result.state, result.result
    skipped = state == "REVOKED" and isinstance(why, LockUnavailable)
    # An eager call stores no result, so Celery reports it as ignored.
    ignored = state == "IGNORED" and isinstance(why, BaseException)
    if not (skipped or ignored):
        raise AssertionError(
            f"{result!r} was not skipped: it ended as {state} with {why!r}."
        )
    assert isinstance(why, BaseException)  # noqa: S101  (for the type checker)
    return why
