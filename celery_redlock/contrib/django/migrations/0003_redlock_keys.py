"""The table of locks, in a database that can hold them: a PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import migrations

from celery_redlock.stores.postgresql_table import CREATE, TABLE

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the table, unless `redlock init` has made it."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(CREATE)


def drop(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the table, and all locks with it."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP TABLE IF EXISTS {TABLE}")


class Migration(migrations.Migration):
    """The third migration. Without a store in ``redlock_nodes`` it stays empty."""

    dependencies = (("celery_redlock", "0002_outboxmessage"),)
    operations = (migrations.RunPython(make, drop),)
