"""The journal of the live page."""

from __future__ import annotations

from django.db import models

__all__ = ["Run"]


class Run(models.Model):
    """One call in a worker: its body ran, or the call did not get the lock.

    Attributes:
        key: The key of the lock.
        began_at: When the body began, or when the call was refused.
        ended_at: When the body ended; None while it runs.
        fence: The fence of the lock; None for a refused call.
        renewals: How often the lock was renewed.
        holder: The process that held the lock when the call was refused.
        note: Why the call was republished, or failed.
    """

    class State(models.TextChoices):
        """The state of a call."""

        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        KILLED = "killed"
        LOST = "lost"
        SKIPPED = "skipped"
        RETRIED = "retried"

    key = models.CharField(max_length=200, db_index=True)
    task = models.CharField(max_length=200)
    task_id = models.CharField(max_length=64, blank=True, db_index=True)
    state = models.CharField(max_length=10, choices=State.choices)
    began_at = models.DateTimeField(db_index=True)
    ended_at = models.DateTimeField(null=True)
    fence = models.BigIntegerField(null=True)
    renewals = models.PositiveIntegerField(default=0)
    host = models.CharField(max_length=200, blank=True)
    pid = models.PositiveIntegerField(null=True)
    parent_pid = models.PositiveIntegerField(null=True)
    holder = models.TextField(blank=True)
    holder_since = models.DateTimeField(null=True)
    note = models.TextField(blank=True)

    class Meta:
        """Order: the newest first."""

        ordering = ("-began_at", "-id")

    def __str__(self) -> str:
        return f"{self.key} {self.state}"
