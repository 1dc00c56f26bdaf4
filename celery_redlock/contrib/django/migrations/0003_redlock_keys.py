"""The table of locks, in a database that can hold them: a PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import migrations

from celery_redlock.stores.postgresql_table import CREATE, TABLE

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the table, unless `redlock init` has made it.

    Where each tenant has a schema, the migrations run in each. Clients refuse a
    database with two tables, so tenants use the one that their search_path leads to.
    """
    connection = schema_editor.connection
    if connection.vendor == "postgresql" and not _found(connection, TABLE):
        schema_editor.execute(CREATE)


def drop(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the table of this schema, and all locks with it."""
    connection = schema_editor.connection
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT quote_ident(current_schema())")
            (schema,) = cursor.fetchone()
        schema_editor.execute(f"DROP TABLE IF EXISTS {schema}.{TABLE}")


def _found(connection: Any, table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [table])
        return bool(cursor.fetchone()[0])


class Migration(migrations.Migration):
    """The third migration. Without a store in ``redlock_nodes`` it stays empty."""

    dependencies = (("celery_redlock", "0002_outboxmessage"),)
    operations = (migrations.RunPython(make, drop),)
