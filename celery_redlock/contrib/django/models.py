"""The models of the app: held locks, which have no table, records of calls, messages.

`HeldLock` is there for the admin's permissions and log entries. `CallRecord` is written
by tasks with ``exactly_once_in``; see ``records``. `OutboxMessage` is a message that
waits for the commit, or for a process that publishes it; see ``outbox``.
"""

from __future__ import annotations

from django.db import models


class _NoRows(models.Manager):
    """Finds no rows, so that ``dumpdata`` does not look for the table."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A lock that is held now. It is stored on the nodes, not in the database."""

    key = models.TextField(primary_key=True)

    objects = _NoRows()

    class Meta:
        """No table. ``migrate`` creates the permissions."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("release_heldlock", "Can release a held lock"),)
        verbose_name = "held lock"

    def __str__(self) -> str:
        return str(self.key)


class CallRecord(models.Model):
    """A call that has been done, with its effects in this database.

    The fields are those of ``effects.call_records.CallRecord``.
    """

    id = models.CharField(max_length=64, primary_key=True)
    task = models.CharField(max_length=255)
    task_id = models.CharField(max_length=255)
    key = models.TextField()
    fence = models.BigIntegerField()
    state = models.CharField(max_length=20)
    result = models.TextField()
    content_type = models.CharField(max_length=100)
    content_encoding = models.CharField(max_length=20)
    recorded_at = models.DateTimeField()
    keep_until = models.DateTimeField()

    class Meta:
        """Indexes: to search for a task id, to list, to delete old records."""

        default_permissions = ("view",)
        indexes = (
            models.Index(fields=["task_id"], name="redlock_record_task_id"),
            models.Index(fields=["recorded_at"], name="redlock_record_recorded_at"),
            models.Index(fields=["keep_until"], name="redlock_record_keep_until"),
        )
        verbose_name = "record of a call"
        verbose_name_plural = "records of calls"

    def __str__(self) -> str:
        return f"{self.task}[{self.task_id}]"


class OutboxMessage(models.Model):
    """A message that is to be published after the commit of its transaction.

    The fields are those of ``effects.outbox.OutboxMessage``. A process that publishes
    the message has taken it until then.
    """

    id = models.CharField(max_length=255, primary_key=True)
    task = models.CharField(max_length=255)
    body = models.TextField()
    content_type = models.CharField(max_length=100)
    content_encoding = models.CharField(max_length=20)
    written_at = models.DateTimeField()
    taken_until = models.DateTimeField(null=True)

    class Meta:
        """An index for the order of publication."""

        default_permissions = ("view",)
        indexes = (
            models.Index(fields=["written_at"], name="redlock_message_written_at"),
        )
        verbose_name = "message in the outbox"
        verbose_name_plural = "messages in the outbox"

    def __str__(self) -> str:
        return f"{self.task}[{self.id}]"
