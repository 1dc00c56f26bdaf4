"""``warn``: a body that has lost its lock runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from celery_redlock.policies.base import DecidedCall, LossDecision, policy


@policy
@dataclass(frozen=True, slots=True)
class Warn(LossDecision):
    """Send the signal, log a warning, and let the body run on."""

    name: ClassVar[str] = "warn"
    words: ClassVar[str] = "run on"
    goes_on: ClassVar[bool] = True

    def perform(self, call: DecidedCall) -> Any:
        """Keep the result of the body."""
        return call.run()
