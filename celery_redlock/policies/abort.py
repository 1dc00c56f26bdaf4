"""``abort``: a body that has lost its lock is interrupted, and the call fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.policies.base import DecidedCall, LossDecision, policy


@policy
@dataclass(frozen=True, slots=True)
class Abort(LossDecision):
    """Interrupt the body with ``LockLost``, which is then the result of the call."""

    name: ClassVar[str] = "abort"
    words: ClassVar[str] = "be stopped"

    def perform(self, call: DecidedCall) -> Any:
        """Raise ``LockLost``, now that the body has ended."""
        return call.fail()
