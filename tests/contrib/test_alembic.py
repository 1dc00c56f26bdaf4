"""Alembic's autogenerate finds the tables of records and messages."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, NullPool, create_engine, text

from celery_redlock.contrib.sqlalchemy import outbox_table, record_table

TABLES = {"celery_redlock_call", "celery_redlock_message"}
INDEXES = {
    "celery_redlock_call_keep_until",
    "celery_redlock_call_task_id",
    "celery_redlock_message_written_at",
}


def changes(connection: Connection, metadata: MetaData) -> list[tuple[str, str]]:
    """Return what autogenerate would write into a migration, of these tables."""

    def is_ours(_: object, name: str | None, kind: str, *__: object) -> bool:
        return kind != "table" or name in TABLES

    context = MigrationContext.configure(
        connection, opts={"include_object": is_ours, "compare_type": True}
    )
    found = compare_metadata(context, metadata)
    return [(change[0], str(change[1].name)) for change in found]


def test_autogenerate_finds_the_tables_and_then_nothing(database: str) -> None:
    """With their indexes; what it finds after the migration would be found for ever."""
    metadata = MetaData()
    record_table(metadata)
    outbox_table(metadata)
    with create_engine(database, poolclass=NullPool).connect() as connection:
        for name in TABLES:
            connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
        before = changes(connection, metadata)
        metadata.create_all(connection)
        after = changes(connection, metadata)
        connection.commit()

    assert set(before) == {
        *(("add_table", name) for name in TABLES),
        *(("add_index", name) for name in INDEXES),
    }
    assert after == []
