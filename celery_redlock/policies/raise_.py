"""``raise``: a duplicate fails, and error callbacks follow."""

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
class Raise(PublishDecision, ConflictDecision, OutageDecision):
    """Do not run the call; its result is FAILURE, with the error that says why.

    At publishing the caller gets the error, and the call is not sent.
    """

    name: ClassVar[str] = "raise"
    words: ClassVar[str] = "fail"
    words_at_publish: ClassVar[str] = "not be published, and raise DuplicateTask"
    sends_event: ClassVar[bool] = False
    raises: ClassVar[bool] = True

    def perform(self, call: DecidedCall) -> Any:
        """Raise the error."""
        return call.fail()
