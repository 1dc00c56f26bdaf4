"""What the admin needs a model for: permissions, and entries in its log."""

from __future__ import annotations

from django.db import models

__all__ = ["HeldLock"]


class _NoRows(models.Manager):
    """Looks for rows nowhere, so that ``dumpdata`` does not miss the table."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A lock that somebody holds now. It is on the nodes, and in no table.

    Attributes:
        key: The name that is locked.
    """

    key = models.TextField(primary_key=True)

    objects = _NoRows()

    class Meta:
        """No table. ``migrate`` makes the permissions."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("release_heldlock", "Can release a held lock"),)
        verbose_name = "held lock"

    def __str__(self) -> str:
        return str(self.key)
