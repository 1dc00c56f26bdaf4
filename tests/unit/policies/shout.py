"""``shout``: a duplicate is skipped, and a line on stdout says so.

The whole of a new policy: no other file of the package knows about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.policies import (
    ConflictDecision,
    DecidedCall,
    PublishDecision,
    policy,
)


@policy
@dataclass(frozen=True, slots=True)
class Shout(ConflictDecision, PublishDecision):
    """Skip the call, and say so aloud."""

    name: ClassVar[str] = "shout"
    words: ClassVar[str] = "be skipped, with a shout"
    words_at_publish: ClassVar[str] = "not be published, with a shout"

    text: str = "Not again!"

    def perform(self, call: DecidedCall) -> Any:
        """Say the text, and skip the call."""
        print(self.text)  # noqa: T201  (the point of this policy)
        return call.skip()
