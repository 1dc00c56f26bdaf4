"""For how long a call is unique, and which policies go with that.

=======================  ====================================================
``unique_while``         a second job of the call is a duplicate
=======================  ====================================================
``"running"``            while one runs: by the lock alone
``"queued"``             also while one waits in the queue, until it begins
``"queued_or_running"``  from being published to having ended
=======================  ====================================================

``unique_for`` adds the seconds after a job has succeeded, in each of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_redlock import checks
from celery_redlock.core.timing import seconds_of
from celery_redlock.errors import ConfigurationError
from celery_redlock.fingerprint import did_you_mean
from celery_redlock.situations import BufferOne, CancelRunning, Run, Wait

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["CLAIM_TTL", "after", "check", "cool_down", "time_of_claim"]

CLAIM_TTL = 3600.0  # seconds
_WHILE = ("running", "queued", "queued_or_running")


def cool_down(unique_for: float | timedelta) -> float:
    """Return the seconds of the cool-down; 0 for none.

    Raises:
        ConfigurationError: It is no duration.
    """
    return checks.seconds_or_none_at_all("unique_for", unique_for)


def after(cool_down_left: float) -> float:
    """Return in how many seconds to come back: not all at the end of a cool-down."""
    return cool_down_left * random.uniform(1.0, 1.1)  # noqa: S311  (jitter)


def time_of_claim(claim_ttl: float | timedelta | None) -> float:
    """Return for how many seconds a job that waits keeps its claim.

    Raises:
        ConfigurationError: It is no duration.
    """
    return CLAIM_TTL if claim_ttl is None else seconds_of("claim_ttl", claim_ttl)


def check(
    *, unique_while: Any, unique_for: float, claim_ttl: Any, on_conflict: Any
) -> None:
    """Refuse what makes no sense together, with the reason.

    ``on_conflict`` is a policy, and ``unique_for`` in seconds.

    Raises:
        ConfigurationError: It says what does not go with what, and what to write.
    """
    if unique_while not in _WHILE:
        hint = did_you_mean(str(unique_while), _WHILE)
        raise ConfigurationError(
            f"unique_while={unique_while!r} does not exist. {hint}"
        )
    is_claimed = unique_while != "running"
    if claim_ttl is not None and not is_claimed:
        raise ConfigurationError(
            "claim_ttl has no effect with unique_while='running': jobs that wait are "
            "not claimed. Leave it out, or write unique_while='queued'."
        )
    by_stage = on_conflict if isinstance(on_conflict, Mapping) else {}
    if "publish" in by_stage and not is_claimed and not unique_for:
        raise ConfigurationError(
            "on_conflict['publish'] has no effect with unique_while='running': nobody "
            "looks for a duplicate before it is published. Leave it out, or write "
            "unique_while='queued'."
        )
    execute = by_stage.get("execute", "skip") if by_stage else on_conflict
    lets_pass = callable(by_stage.get("publish")) or by_stage.get("publish") in (
        "allow",
        Run(),
    )
    if is_claimed and not lets_pass:
        _check_that_it_is_published(unique_while, execute)
    if unique_for:
        _check_that_it_can_wait(execute)


def _check_that_it_is_published(unique_while: str, execute: Any) -> None:
    """Refuse what wants duplicates in the queue where none is let in."""
    if _is(execute, "buffer_one", BufferOne):
        word = "buffer_one"
    elif _is(execute, "cancel_running", CancelRunning) and unique_while != "queued":
        word = "cancel_running"
    else:
        return
    raise ConfigurationError(
        f"on_conflict={word!r} needs the duplicate in the queue, and unique_while="
        f"{unique_while!r} keeps it out. Leave unique_while out"
        + (
            ": 'queued' alone lets one more run follow, with the first arguments."
            if word == "buffer_one"
            else f", or write on_conflict={{'publish': 'allow', 'execute': {word!r}}}."
        )
    )


def _check_that_it_can_wait(execute: Any) -> None:
    """Refuse what cannot be done about a job that has ended already."""
    for word, kind, reason in (
        ("wait", Wait, "it would keep a worker's slot busy until that is over"),
        ("buffer_one", BufferOne, "the run that follows would come within it"),
        ("cancel_running", CancelRunning, "there is nothing left to cancel in it"),
    ):
        if _is(execute, word, kind):
            raise ConfigurationError(
                f"on_conflict={word!r} makes no sense with unique_for, a cool-down "
                f"after success: {reason}. Use 'retry' to run after it, or 'skip'."
            )


def _is(policy: Any, word: str, kind: type) -> bool:
    return policy == word or isinstance(policy, kind)
