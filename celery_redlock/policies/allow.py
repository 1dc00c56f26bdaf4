"""``allow``: a call runs without the lock, beside the call that has it.

The decision `Run` has one name in all situations, ``allow``: in logs, events,
signals, metrics, traces and `explain`. Only the task option ``on_backend_error``
calls it ``"run"``: in an outage no other call may be there to run beside.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from celery_redlock.policies.base import (
    ConflictDecision,
    DecidedCall,
    OutageDecision,
    PublishDecision,
    policy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@policy
@dataclass(frozen=True, slots=True)
class Run(PublishDecision, ConflictDecision, OutageDecision):
    """Run the call without the lock; at publishing: send it all the same."""

    name: ClassVar[str] = "allow"
    other_words: ClassVar[Mapping[str, str]] = {"on_backend_error": "run"}
    words: ClassVar[str] = "run without the lock"
    words_at_publish: ClassVar[str] = "be published all the same"
    log_level: ClassVar[int] = logging.WARNING
    goes_on: ClassVar[bool] = True

    def perform(self, call: DecidedCall) -> Any:
        """Run the body without the lock, or send the call."""
        return call.run()
