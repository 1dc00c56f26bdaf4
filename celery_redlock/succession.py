"""What goes with ``buffer_one`` and ``cancel_running``: their options and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.errors import ConfigurationError
from celery_redlock.fingerprint import did_you_mean
from celery_redlock.situations import KEEPS, BufferOne, CancelRunning

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CANCEL_GRACE", "LEARNS_WITHIN", "check", "filled"]

CANCEL_GRACE = 10.0  # seconds
LEARNS_WITHIN = 1.0  # seconds in which one that runs learns that it is to end


def check(
    *,
    buffer_keep: Any,
    cancel_grace: Any,
    renew: bool,
    may: Callable[[type], bool],
    asks: bool,
) -> None:
    """Refuse what makes no sense together, with the reason.

    Args:
        buffer_keep: As it was written.
        cancel_grace: The same.
        renew: Whether the lock is renewed.
        may: Tells whether the task's ``on_conflict`` may come to such a decision.
        asks: Whether it asks a callable.

    Raises:
        ConfigurationError: It says what does not go with what, and what to write.
    """
    if buffer_keep is not None and buffer_keep not in KEEPS:
        hint = did_you_mean(str(buffer_keep), KEEPS)
        raise ConfigurationError(f"buffer_keep={buffer_keep!r} does not exist. {hint}")
    for name, value, kind, word in (
        ("buffer_keep", buffer_keep, BufferOne, "buffer_one"),
        ("cancel_grace", cancel_grace, CancelRunning, "cancel_running"),
    ):
        if value is not None and not may(kind):
            raise ConfigurationError(
                f"{name} has no effect without on_conflict={word!r}. Leave it out, or "
                f"write on_conflict={word!r}."
            )
    if may(CancelRunning) and not asks and not renew:
        raise ConfigurationError(
            "on_conflict='cancel_running' needs renew=True: it is with a renewal that "
            "the one that runs learns that it is to end."
        )


def filled(
    decision: Any, *, keep: str | None, grace: float | None, countdown: float | None
) -> Any:
    """Return the decision with the task's options where it says nothing of its own."""
    if isinstance(decision, BufferOne):
        return BufferOne(
            decision.keep or keep or KEEPS[0],  # type: ignore[arg-type]
            decision.countdown or countdown,
        )
    if isinstance(decision, CancelRunning):
        return CancelRunning(decision.grace or grace or CANCEL_GRACE)
    return decision
