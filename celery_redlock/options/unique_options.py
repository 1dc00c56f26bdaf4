"""Options of uniqueness: which other job makes a call a duplicate, and for how long.

=======================  ====================================================
``unique_while``         a second job of the call is a duplicate
=======================  ====================================================
``"running"``            while one runs: by the lock alone
``"queued"``             also while one waits in the queue, until it begins
``"queued_or_running"``  from publishing until it has ended
=======================  ====================================================

``unique_for`` adds the seconds after a job has succeeded, in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from celery_redlock.basics.spelling import check_word
from celery_redlock.errors import ConfigurationError
from celery_redlock.options.key_options import LimitOptions
from celery_redlock.policies import TaskOptions

_CLAIM_TTL = 3600.0  # seconds
_UNIQUE_WHILE = ("running", "queued", "queued_or_running")


@dataclass(frozen=True, kw_only=True)
class UniqueOptions(LimitOptions, TaskOptions):
    """The options that say when another job makes a call a duplicate."""

    unique_while: str = "running"
    unique_for: float = 0.0
    claim_ttl: float | None = None

    def check(self) -> None:
        """Refuse values that cannot be used."""
        super().check()
        while_ = self.unique_while
        check_word("unique_while", while_, _UNIQUE_WHILE)
        if while_ == "queued_or_running" and self.most_at_once > 1:
            raise ConfigurationError(
                "unique_while='queued_or_running' makes a call a duplicate while "
                f"another one runs, and with {self.several} several may run at once. "
                "Write unique_while='queued', or leave it out."
            )
        if self.unique_for and self.has_permits:
            raise ConfigurationError(
                f"unique_for makes no sense with {self.several}: the success of one "
                "call would keep the others out. For so many starts in a period write "
                "rate, such as rate='1/h'."
                if self.rate is None
                else "unique_for makes no sense with rate, which says how often calls "
                "may start. Leave one out."
            )

    @cached_property
    def is_claimed(self) -> bool:
        """Whether a call is claimed for the job that waits."""
        return self.unique_while != "running"

    @cached_property
    def claim_seconds(self) -> float:
        """For how many seconds a claim lasts."""
        return self.claim_ttl or _CLAIM_TTL

    @cached_property
    def is_unique_before_it_runs(self) -> bool:
        """Whether a publisher looks for duplicates."""
        return self.unique_while != "running" or bool(self.unique_for)
