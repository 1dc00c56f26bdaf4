"""What happened, as the bodies of the tasks wrote it down."""

from __future__ import annotations

from django.db import models

__all__ = ["Run"]


class Run(models.Model):
    """One call that a worker took: its body ran, or it was refused the lock.

    Attributes:
        key: What it locks.
        began_at: When the body began, or when it was refused.
        ended_at: When the body ended; None while it runs.
        fence: Of its lock; None without.
        renewals: How often its lock was renewed.
        holder: Who had the lock when it was refused.
        note: Why it was put back, or failed.
    """

    class State(models.TextChoices):
        """How far it is."""

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
        """The newest come first."""

        ordering = ("-began_at", "-id")

    def __str__(self) -> str:
        return f"{self.key} {self.state}"
