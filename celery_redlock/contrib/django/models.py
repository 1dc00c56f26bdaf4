"""A model without a table, for the admin's permissions and log entries."""

from __future__ import annotations

from django.db import models

__all__ = ["HeldLock"]


class _NoRows(models.Manager):
    """Finds no rows, so that ``dumpdata`` does not look for the table."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().none()


class HeldLock(models.Model):
    """A lock that is held now. It is stored on the nodes, not in the database.

    Attributes:
        key: The name that is locked.
    """

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
