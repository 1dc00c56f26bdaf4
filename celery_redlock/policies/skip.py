"""``skip``: a duplicate does not run, and its result is final at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.policies.base import (
    ConflictDecision,
    DecidedCall,
    OutageDecision,
    PublishDecision,
    policy,
)


@policy
@dataclass(frozen=True, slots=True)
class Skip(PublishDecision, ConflictDecision, OutageDecision):
    """Do not run the call; its result is REVOKED and names the holder or the outage.

    At publishing the call is not sent, and its result is that of the other job.
    """

    name: ClassVar[str] = "skip"
    words: ClassVar[str] = "be skipped"
    words_at_publish: ClassVar[str] = (
        "not be published; its result is that of the other job"
    )
    sends_event: ClassVar[bool] = False

    def perform(self, call: DecidedCall) -> Any:
        """End the call as REVOKED; at publishing: return the other job's result."""
        return call.skip()
