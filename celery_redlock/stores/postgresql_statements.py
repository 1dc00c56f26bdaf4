"""Prepared statements for the table of locks, several of them in one round trip.

The server parses each statement once for a connection, and libpq's pipeline mode sends
all statements of a round trip together. That takes a third of the time that their text
takes. Source: https://www.postgresql.org/docs/current/libpq-pipeline-mode.html
"""

from __future__ import annotations

import contextlib
import hashlib
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, NamedTuple

from psycopg import Error, OperationalError, errors
from psycopg.pq import ConnStatus, ExecStatus

from celery_redlock.stores.keyspace import Cell
from celery_redlock.stores.postgresql_table import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from psycopg import Connection
    from psycopg.pq.abc import PGresult

    from celery_redlock.stores.connection import Waits
    from celery_redlock.stores.keyspace import Changes

__all__ = [
    "Assumed",
    "Changed",
    "Statement",
    "Statements",
    "cells_of",
    "change",
    "changed",
    "listen_name",
    "lock",
    "read",
    "read_fields",
    "write",
]

_COLUMNS = "name, field, kind, value, score, expires_at"
_READ = f"SELECT {_COLUMNS} FROM {TABLE} WHERE "  # noqa: S608  (constants)
_REPLACE = (
    "ON CONFLICT (name, field) DO UPDATE SET kind = excluded.kind, "
    "value = excluded.value, score = excluded.score, expires_at = excluded.expires_at"
)
# Also the timeline, which is another one after a standby was promoted, and the oid of
# the table, which is another one after a dump took its place. And the process of the
# server, which is another one behind a pooler in transaction mode.
_NOW = (
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us, 't' || "  # noqa: S608
    "CASE WHEN pg_is_in_recovery() THEN '' "
    "ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END || 'r' || "
    f"to_regclass('{TABLE}')::oid AS place, pg_backend_pid() AS process"
)


def _found(columns: str) -> str:
    """Return the FROM item of the row of `each`, found by the index.

    As a plain join it may be planned as a scan of the table, while that is small.
    """
    return (
        f"LATERAL (SELECT {columns} FROM {TABLE} "  # noqa: S608
        "WHERE name = each.name AND field = each.field OFFSET 0)"
    )


# What follows it changes rows only if there is a row in `so`: if the server, its time
# and these cells are as assumed. `below`: a cell is absent, or a lower number.
_IF_SO = (
    f"WITH now AS MATERIALIZED ({_NOW}), so AS MATERIALIZED ("  # noqa: S608
    "SELECT (us + 999) / 1000 AS ms FROM now "
    "WHERE place = $1::text AND process = $2::int "
    "AND us BETWEEN $3::bigint AND $4::bigint AND NOT EXISTS (SELECT FROM "
    "unnest($5::bytea[], $6::bytea[], $7::text[], $8::bytea[], $9::bytea[]) "
    "AS each (name, field, kind, value, below) "
    f"LEFT JOIN {_found('kind, value, expires_at')} AS cell ON TRUE "
    "WHERE CASE WHEN below IS NULL "
    "THEN cell.kind IS DISTINCT FROM each.kind "
    "OR cell.value IS DISTINCT FROM each.value OR cell.expires_at < us / 1000 "
    "ELSE (octet_length(cell.value), cell.value) >= (octet_length(below), below) END"
    ")), done AS ("
)
# Whether it is so, how many rows were changed, and if it is not so, the cells.
_OR_READ = (
    " RETURNING 1) SELECT us, place, process, EXISTS (SELECT FROM so), "  # noqa: S608
    "(SELECT count(*) FROM done), "
    "NULL::bytea, NULL::bytea, NULL::text, NULL::bytea, NULL::bigint FROM now "
    "UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, "
    "name, field, cell.kind, cell.value, cell.expires_at "
    "FROM unnest($5::bytea[], $6::bytea[]) AS each (name, field) "
    f"CROSS JOIN {_found('kind, value, expires_at')} AS cell "
    "WHERE NOT EXISTS (SELECT FROM so)"
)
_TEXTS = {
    "begin": "BEGIN",
    "commit late": "SELECT set_config('synchronous_commit', 'off', true)",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    # In the order of the array: the numbers are sorted, so that no two transactions
    # wait for each other.
    "lock": "SELECT CASE WHEN is_shared THEN pg_advisory_xact_lock_shared(number) "
    "ELSE pg_advisory_xact_lock(number) END "
    "FROM unnest($1::bigint[], $2::bool[]) AS each (number, is_shared)",
    "now": _NOW,
    "read": f"{_READ}name = ANY($1::bytea[])",
    "read fields": f"{_READ}name = $1::bytea AND field = ANY($2::bytea[])",
    "wipe if": f"{_IF_SO}DELETE FROM {TABLE} WHERE name = ANY($10::bytea[]) "  # noqa: S608
    f"AND EXISTS (SELECT FROM so){_OR_READ}",
    "extend if": f"{_IF_SO}UPDATE {TABLE} AS lock SET expires_at = found.ends "  # noqa: S608
    "FROM (SELECT cell.at, so.ms + each.ttl_ms AS ends FROM so, "
    "unnest($10::bytea[], $11::bytea[], $12::bigint[]) AS each (name, field, ttl_ms) "
    f"CROSS JOIN {_found('ctid AS at')} AS cell) AS found "
    f"WHERE lock.ctid = found.at{_OR_READ}",
    "write if": f"{_IF_SO}INSERT INTO {TABLE} ({_COLUMNS}) "  # noqa: S608
    "SELECT name, field, kind, value, score, so.ms + ttl_ms FROM so, "
    "unnest($10::bytea[], $11::bytea[], $12::text[], $13::bytea[], $14::float8[], "
    "$15::bigint[]) AS each (name, field, kind, value, score, ttl_ms) "
    f"{_REPLACE}{_OR_READ}",
    "wipe": f"DELETE FROM {TABLE} WHERE name = ANY($1::bytea[])",  # noqa: S608
    "remove": f"DELETE FROM {TABLE} AS old USING "  # noqa: S608
    "unnest($1::bytea[], $2::bytea[]) AS each (name, field) "
    f"CROSS JOIN {_found('ctid AS at')} AS cell WHERE old.ctid = cell.at",
    "write": f"INSERT INTO {TABLE} ({_COLUMNS}) SELECT * FROM unnest($1::bytea[], "  # noqa: S608
    "$2::bytea[], $3::text[], $4::bytea[], $5::float8[], $6::bigint[]) "
    f"{_REPLACE}",
    "notify": "SELECT pg_notify($1, $2)",
    # Of keys that ended.
    "sweep": f"DELETE FROM {TABLE} WHERE name IN (SELECT name FROM {TABLE} WHERE "  # noqa: S608
    "field = '' AND expires_at < extract(epoch FROM clock_timestamp()) * 1000 "
    "AND pg_try_advisory_xact_lock(('x' || md5(name))::bit(64)::bigint) "
    "LIMIT $1::int FOR UPDATE SKIP LOCKED)",
}
_NAMES = {
    name: f"redlock_{number}".encode() for number, name in enumerate(sorted(_TEXTS))
}


class Statement(NamedTuple):
    """One statement to carry out.

    Attributes:
        statement: Its name in this module.
        values: Its parameters, as text.
    """

    statement: str
    values: Sequence[bytes | None] = ()


class Statements:
    """The statements, prepared on one connection.

    Nothing here blocks: who calls a method waits where it yields (`Waits`).

    Args:
        connection: In autocommit mode. Between two calls it can be used otherwise.
    """

    def __init__(self, connection: Connection) -> None:
        self._pg = connection.pgconn

    def prepare(self) -> Waits[list[PGresult]]:
        """Have the server parse them.

        Raises:
            psycopg.Error: The server refuses one.
        """
        self._pg.enter_pipeline_mode()
        for name, text in _TEXTS.items():
            self._pg.send_prepare(_NAMES[name], text.encode())
        return (yield from self._results())

    def carry_out(self, steps: Sequence[Statement]) -> Waits[list[PGresult]]:
        """Carry out in one round trip, and return the results of those with rows.

        Outside of a "begin" and its "commit", they are a transaction by themselves.

        Raises:
            psycopg.Error: The first error. The server has skipped the steps after it.
        """
        self._pg.enter_pipeline_mode()
        for statement, values in steps:
            self._pg.send_query_prepared(_NAMES[statement], values)
        return (yield from self._results())

    def _results(self) -> Waits[list[PGresult]]:
        found, failed = [], None
        try:
            yield from self._flushed()
            while result := (yield from self._next()):
                if result.status == ExecStatus.TUPLES_OK:
                    found.append(result)
                elif result.status == ExecStatus.FATAL_ERROR:
                    failed = failed or result
        except Error:
            if not failed:  # else the server told why it closes the connection
                raise
        finally:
            with contextlib.suppress(Error):
                self._pg.exit_pipeline_mode()
        if failed:
            raise errors.error_from_result(failed, "utf-8")
        return found

    def _flushed(self) -> Waits[None]:
        """Send what is left, and mark the end of the round trip."""
        self._pg.pipeline_sync()
        while self._pg.flush():
            yield EVENT_READ | EVENT_WRITE
            self._pg.consume_input()

    def _next(self) -> Waits[PGresult | None]:
        """Return the next result; None at the end of the round trip."""
        pg = self._pg
        while True:
            while pg.is_busy():
                yield EVENT_READ
                pg.consume_input()
            result = pg.get_result()
            if result is not None:
                is_end = result.status == ExecStatus.PIPELINE_SYNC
                return None if is_end else result
            if pg.status != ConnStatus.OK:  # else it is between two results
                raise OperationalError("the connection is lost")


# -- steps -----------------------------------------------------------------------------


def lock(numbers: dict[int, bool]) -> Statement:
    """Take advisory locks until the end of the transaction: number -> is it shared."""
    order = sorted(numbers)
    shared = ["t" if numbers[number] else "f" for number in order]
    return Statement("lock", (_array(order), _array(shared)))


def read(names: Iterable[bytes]) -> Statement:
    """Read all rows of keys."""
    return Statement("read", (_bytes_array(names),))


def read_fields(name: bytes, fields: Iterable[bytes]) -> Statement:
    """Read some rows of a key."""
    return Statement("read fields", (_bytea(name), _bytes_array(fields)))


class Assumed(NamedTuple):
    """The conditions of `change`, which else changes nothing.

    Attributes:
        place: The timeline, and the oid of the table.
        process: The process of the server.
        earliest_us: The server's clock shows this or later.
        latest_us: It shows this or earlier.
        cells: Name, field, kind and value of cells; None: there is no such cell.
        below: Cells that are absent, or a number that is lower than this.
    """

    place: bytes
    process: int
    earliest_us: int
    latest_us: int
    cells: Sequence[tuple[bytes, bytes, str | None, bytes | None]]
    below: Mapping[tuple[bytes, bytes], bytes]


def change(assumed: Assumed, changes: Changes, *, extends: bool) -> Statement:
    """Write changes if all is as assumed; else return the cells in question.

    Args:
        assumed: What must be so.
        changes: Either only deletes keys, or only writes. The ends of cells are in ms
            from now.
        extends: Whether nothing but the ends of locks is written.
    """
    names, fields, kinds, values = zip(*assumed.cells, strict=True)
    more = [*assumed.below]
    rest = [None] * len(more)
    given = (
        *(assumed.place, b"%d" % assumed.process),
        *(b"%d" % assumed.earliest_us, b"%d" % assumed.latest_us),
        _bytes_array([*names, *(name for name, _ in more)]),
        _bytes_array([*fields, *(field for _, field in more)]),
        *(_array([*kinds, *rest]), _bytes_array([*values, *rest])),
        _bytes_array([*[None] * len(names), *assumed.below.values()]),
    )
    if changes.wiped:
        return Statement("wipe if", (*given, _bytes_array(changes.wiped)))
    if extends:
        places = map(_bytes_array, zip(*changes.written, strict=True))
        ends = _array(cell.expires_at_ms for cell in changes.written.values())
        return Statement("extend if", (*given, *places, ends))
    return Statement("write if", (*given, *_columns(changes)))


def write(changes: Changes) -> list[Statement]:
    """Write changes, and send the messages when the transaction ends."""
    steps = []
    if changes.wiped:
        steps.append(Statement("wipe", (_bytes_array(changes.wiped),)))
    if changes.removed:
        places = [*zip(*changes.removed, strict=True)]
        steps.append(Statement("remove", [*map(_bytes_array, places)]))
    if changes.written:
        steps.append(Statement("write", _columns(changes)))
    steps += [
        Statement("notify", (listen_name(channel).encode(), message))
        for channel, message in changes.messages
    ]
    return steps


def _columns(changes: Changes) -> Sequence[bytes]:
    names, fields, kinds, values, scores, ends = zip(
        *changes.written.values(), strict=True
    )
    return (
        *(_bytes_array(names), _bytes_array(fields), _array(kinds)),
        *(_bytes_array(values), _array(scores), _array(ends)),
    )


class Changed(NamedTuple):
    """The result of `change`.

    Attributes:
        now_us: The time of the server.
        place: Its timeline, and the oid of the table.
        process: Its process.
        is_so: Whether all was as assumed.
        rows: How many rows it has changed.
        cells: If not, the cells that were in question, without scores.
    """

    now_us: int
    place: bytes
    process: int
    is_so: bool
    rows: int
    cells: list[Cell]


def changed(result: PGresult) -> Changed:
    """Return what the result of `change` says."""
    get = result.get_value
    now, place, process, is_so, rows = [get(0, at) or b"" for at in range(5)]
    cells = [
        Cell(
            _from_bytea(get(row, 5)) or b"",
            _from_bytea(get(row, 6)) or b"",
            (get(row, 7) or b"").decode(),
            _from_bytea(get(row, 8)),
            None,
            None if (ends := get(row, 9)) is None else int(ends),
        )
        for row in range(1, result.ntuples)
    ]
    return Changed(int(now), place, int(process), is_so == b"t", int(rows), cells)


def cells_of(result: PGresult) -> Iterator[Cell]:
    """Yield the cells of a result."""
    get = result.get_value
    for row in range(result.ntuples):
        score, ends = get(row, 4), get(row, 5)
        yield Cell(
            _from_bytea(get(row, 0)) or b"",
            _from_bytea(get(row, 1)) or b"",
            (get(row, 2) or b"").decode(),
            _from_bytea(get(row, 3)),
            None if score is None else float(score),
            None if ends is None else int(ends),
        )


def listen_name(channel: bytes) -> str:
    """Return the name of a channel in PostgreSQL: at most 63 bytes, without quotes."""
    return f"redlock_{hashlib.md5(channel, usedforsecurity=False).hexdigest()}"


# -- values as text --------------------------------------------------------------------


def _bytea(data: bytes) -> bytes:
    return b"\\x" + data.hex().encode()


def _from_bytea(text: bytes | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text[2:].decode())


def _bytes_array(datas: Iterable[bytes | None]) -> bytes:
    texts = ["NULL" if one is None else f'"\\\\x{one.hex()}"' for one in datas]
    return f"{{{','.join(texts)}}}".encode()


def _array(values: Iterable[object]) -> bytes:
    """Return an array of values that need no quotes, or have them."""
    texts = ["NULL" if one is None else str(one) for one in values]
    return f"{{{','.join(texts)}}}".encode()
