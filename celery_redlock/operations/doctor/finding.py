"""The result of a diagnosis."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ERROR", "NOTE", "WARNING", "Finding", "Severity", "worst_of"]


class Severity(enum.IntEnum):
    """The weight of a finding; the greater, the worse."""

    NOTE = 1
    """Good to know. Nothing is wrong."""
    WARNING = 2
    """Locks are granted and safe, with less to spare than they should have."""
    ERROR = 3
    """Locks are not granted, or two clients may hold one."""

    @property
    def word(self) -> str:
        """Its name for operators."""
        return self.name.lower()


NOTE, WARNING, ERROR = Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that makes locks unsafe, slow or unavailable.

    Attributes:
        code: What kind of thing, in a word that does not change between versions.
        severity: How bad it is.
        fact: What was found, a sentence with its numbers.
        remedy: What to do about it, a sentence or two.
        about: The name of the node or task; ``""`` for the whole deployment.
    """

    code: str
    severity: Severity
    fact: str
    remedy: str
    about: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {
            "code": self.code,
            "severity": self.severity.word,
            "about": self.about,
            "fact": self.fact,
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        return f"{self.fact} {self.remedy} [{self.code}]"


def worst_of(findings: Iterable[Finding]) -> Severity | None:
    """Return the greatest severity; None if there are no findings."""
    return max((finding.severity for finding in findings), default=None)
