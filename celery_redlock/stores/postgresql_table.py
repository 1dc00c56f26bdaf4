"""The table of locks in a PostgreSQL. Importing this module needs no driver."""

from __future__ import annotations

TABLE = "redlock_keys"

CREATE = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    name bytea NOT NULL,
    field bytea NOT NULL,
    kind text NOT NULL,
    value bytea,
    score double precision,
    expires_at bigint,
    PRIMARY KEY (name, field)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
"""
