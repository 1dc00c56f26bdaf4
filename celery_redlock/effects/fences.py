"""The fence of a write, and the error of a late one: the same for both ORMs."""

from __future__ import annotations

from typing import Any

from celery_redlock.errors import ConfigurationError, StaleFence


def fence_number(fence: Any) -> int:
    """Return the number of a fence: a lease, or a number already.

    Raises:
        ConfigurationError: The value is not a fence.
    """
    number = getattr(fence, "fence", fence)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigurationError(
            f"{fence!r} is not a fence. Use the lease, or its number (`lease.fence`). "
            "Nothing was written."
        )
    return number


def stale(write: str, fence: int, latest: int) -> StaleFence:
    """Return the error of a write whose fence is less than the stored one."""
    return StaleFence(
        f"{write} has fence {fence}, but fence {latest} is stored: a later holder of "
        "the lock has written. Nothing was written. Discard this work.",
        fence=fence,
        latest=latest,
    )
