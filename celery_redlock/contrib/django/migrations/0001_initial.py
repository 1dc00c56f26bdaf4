"""The tables of records and messages, and in a PostgreSQL the table of locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import migrations, models

from celery_redlock.stores.postgresql_table import CREATE, TABLE

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the table of locks, unless ``redlock init`` has made it.

    Where each tenant has a schema, the migrations run in each. Clients refuse a
    database with two tables, so tenants use the one that their search_path leads to.
    """
    connection = schema_editor.connection
    if connection.vendor == "postgresql" and not _found(connection, TABLE):
        schema_editor.execute(CREATE)


def drop(_apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the table of locks of this schema, and all locks with it."""
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
    """The first migration. `HeldLock` is only a state: it has no table."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="HeldLock",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "held lock",
                "permissions": (("release_heldlock", "Can release a held lock"),),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="CallRecord",
            fields=[
                (
                    "id",
                    models.CharField(max_length=64, primary_key=True, serialize=False),
                ),
                ("task", models.CharField(max_length=255)),
                ("task_id", models.CharField(max_length=255)),
                ("key", models.TextField()),
                ("fence", models.BigIntegerField()),
                ("state", models.CharField(max_length=20)),
                ("result", models.TextField()),
                ("content_type", models.CharField(max_length=100)),
                ("content_encoding", models.CharField(max_length=20)),
                ("recorded_at", models.DateTimeField()),
                ("keep_until", models.DateTimeField()),
            ],
            options={
                "verbose_name": "record of a call",
                "verbose_name_plural": "records of calls",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["task_id"], name="redlock_record_task_id"),
                    models.Index(
                        fields=["recorded_at"], name="redlock_record_recorded_at"
                    ),
                    models.Index(
                        fields=["keep_until"], name="redlock_record_keep_until"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                (
                    "id",
                    models.CharField(max_length=255, primary_key=True, serialize=False),
                ),
                ("task", models.CharField(max_length=255)),
                ("body", models.TextField()),
                ("content_type", models.CharField(max_length=100)),
                ("content_encoding", models.CharField(max_length=20)),
                ("written_at", models.DateTimeField()),
                ("taken_until", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "message in the outbox",
                "verbose_name_plural": "messages in the outbox",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        fields=["written_at"], name="redlock_message_written_at"
                    ),
                ],
            },
        ),
        migrations.RunPython(make, drop),
    )
