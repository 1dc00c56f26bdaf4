"""Prepared statements for the table of locks, several of them in one round trip.

The server parses each statement once for a connection, and libpq's pipeline mode sends
all statements of a round trip together. That takes a third of the time that their text
takes. Source: https://www.postgresql.org/docs/current/libpq-pipeline-mode.html

Values are sent and returned in the server's own, binary form, which neither side must
read as text: numbers in network order, and an array as a header and its elements, each
after its length. Source: the functions ``array_recv``, ``int8send`` and ``float8send``.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from psycopg import Error, OperationalError, errors
from psycopg.pq import ConnStatus, ExecStatus, Format

from celery_redlock.stores.keyspace import Cell
from celery_redlock.stores.postgresql_table import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psycopg import Connection
    from psycopg.pq.abc import PGresult

    from celery_redlock.stores.connection import Waits
    from celery_redlock.stores.keyspace import Changes
    from celery_redlock.stores.needs import Needs

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
    f"'{TABLE}'::regclass::oid AS place, pg_backend_pid() AS process"
)


def _found(columns: str) -> str:
    """Return the FROM item of the row of `each`, found by the index.

    As a plain join it may be planned as a scan of the table, while that is small.
    """
    return (
        f"LATERAL (SELECT {columns} FROM {TABLE} "  # noqa: S608
        "WHERE name = each.name AND field = each.field OFFSET 0)"
    )


def _if_so(more: str = "", columns: str = "") -> str:
    """Return the WITH clause of a change that is made only if `so` has a row.

    `so` has one if the server, its time and these cells are as assumed. `below`: a cell
    is absent, or a lower number.

    Args:
        more: More arrays, with a value for each cell.
        columns: Their names.
    """
    return (
        f"WITH now AS MATERIALIZED ({_NOW}), cells AS MATERIALIZED ("  # noqa: S608
        f"SELECT each.kind, each.value, below{columns}, at, cell.kind AS its_kind, "
        "cell.value AS its_value, expires_at FROM unnest($5::bytea[], $6::bytea[], "
        f"$7::text[], $8::bytea[], $9::bytea[]{more}) "
        f"AS each (name, field, kind, value, below{columns}) LEFT JOIN "
        f"{_found('ctid AS at, kind, value, expires_at')} AS cell ON TRUE"
        "), so AS MATERIALIZED ("
        "SELECT (us + 999) / 1000 AS ms FROM now "
        "WHERE place = $1::text AND process = $2::int "
        "AND us BETWEEN $3::bigint AND $4::bigint "
        "AND NOT EXISTS (SELECT FROM cells WHERE CASE WHEN below IS NULL "
        "THEN its_kind IS DISTINCT FROM kind OR its_value IS DISTINCT FROM value "
        "OR expires_at < us / 1000 "
        "ELSE (octet_length(its_value), its_value) >= (octet_length(below), below) END"
        ")), done AS ("
    )


_IF_SO = _if_so()
# Whether it is so, and how many rows were changed.
_TOLD = (
    "SELECT us, place, process, EXISTS (SELECT FROM so), (SELECT count(*) FROM done)"
)
_TELL = f" RETURNING 1) {_TOLD} FROM now"
# If it is not so, also the cells: what takes a lock is often refused.
_TELL_AND_READ = (
    f" RETURNING 1) {_TOLD}, "  # noqa: S608
    "NULL::bytea, NULL::bytea, NULL::text, NULL::bytea, NULL::float8, NULL::bigint "
    "FROM now UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, "
    "name, field, cell.kind, cell.value, NULL, cell.expires_at "
    "FROM unnest($5::bytea[], $6::bytea[]) AS each (name, field) "
    f"CROSS JOIN {_found('kind, value, expires_at')} AS cell "
    "WHERE NOT EXISTS (SELECT FROM so)"
)
# In the order of the array: the numbers are sorted, so that no two transactions
# wait for each other.
_LOCK = (
    "SELECT CASE WHEN is_shared THEN pg_advisory_xact_lock_shared(number) "
    "ELSE pg_advisory_xact_lock(number) END "
    "FROM unnest($1::bigint[], $2::bool[]) AS each (number, is_shared)"
)
_TEXTS = {
    "begin": "BEGIN",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "lock": _LOCK,
    # In a transaction whose commit does not wait for the disk.
    "lock and commit late": f"{_LOCK} WHERE "
    "(SELECT set_config('synchronous_commit', 'off', true)) = 'off'",
    "now": _NOW,
    "read": f"{_READ}name = ANY($1::bytea[])",
    "read fields": f"{_READ}name = $1::bytea AND field = ANY($2::bytea[])",
    "wipe if": f"{_IF_SO}DELETE FROM {TABLE} WHERE name = ANY($10::bytea[]) "  # noqa: S608
    f"AND EXISTS (SELECT FROM so){_TELL}",
    "extend if": f"{_if_so(', $10::bigint[]', ', ttl_ms')}UPDATE {TABLE} AS lock "  # noqa: S608
    "SET expires_at = so.ms + cells.ttl_ms FROM so CROSS JOIN cells "
    f"WHERE lock.ctid = cells.at AND cells.ttl_ms IS NOT NULL{_TELL}",
    "write if": f"{_IF_SO}INSERT INTO {TABLE} ({_COLUMNS}) "  # noqa: S608
    "SELECT name, field, kind, value, score, so.ms + ttl_ms FROM so, "
    "unnest($10::bytea[], $11::bytea[], $12::text[], $13::bytea[], $14::float8[], "
    "$15::bigint[]) AS each (name, field, kind, value, score, ttl_ms) "
    f"{_REPLACE}{_TELL_AND_READ}",
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
_BOOL, _BYTEA, _INT8, _TEXT, _FLOAT8 = 16, 17, 20, 25, 701  # oids of types
_HEADER, _DOUBLE = struct.Struct("!5i").pack, struct.Struct("!d")
# In arrays: a length and a value, the length of bytes, and that of no value.
_SIZES = {
    _BOOL: (1, struct.Struct("!i?").pack),
    _INT8: (8, struct.Struct("!iq").pack),
    _FLOAT8: (8, struct.Struct("!id").pack),
}
_ASSUMED = _BYTEA, _BYTEA, _TEXT, _BYTEA, _BYTEA
_LENGTH, NULL = struct.Struct("!i").pack, b"\xff\xff\xff\xff"
# Plain numbers: to look up the member of an enumeration takes longer than to compare.
_BINARY, _OK = int(Format.BINARY), int(ConnStatus.OK)
_SYNC, _ERROR = int(ExecStatus.PIPELINE_SYNC), int(ExecStatus.FATAL_ERROR)
_TOLD_BY = _ERROR, int(ExecStatus.TUPLES_OK)
_NAMES = {
    name: f"redlock_{number}".encode() for number, name in enumerate(sorted(_TEXTS))
}


class Statement(NamedTuple):
    """One statement to carry out.

    Attributes:
        statement: Its name in this module.
        values: Its parameters, in binary form.
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
        return self._results()

    def carry_out(self, steps: Sequence[Statement]) -> Waits[list[PGresult]]:
        """Carry out in one round trip, and return the results of those with rows.

        Outside of a "begin" and its "commit", they are a transaction by themselves.

        Raises:
            psycopg.Error: The first error. The server has skipped the steps after it.
        """
        self._pg.enter_pipeline_mode()
        send = self._pg.send_query_prepared
        for statement, values in steps:
            send(_NAMES[statement], values, [_BINARY] * len(values), _BINARY)
        return self._results()

    def _results(self) -> Waits[list[PGresult]]:
        results: list[PGresult] = []
        lost: Error | None = None
        try:
            yield from self._collect(results)
        except Error as error:
            lost = error
        finally:
            try:  # noqa: SIM105  (quicker than a context manager)
                self._pg.exit_pipeline_mode()
            except Error:
                pass
        for result in results:  # also if the server told why it closes the connection
            if result.status == _ERROR:
                raise errors.error_from_result(result, "utf-8")
        if lost:
            raise lost
        return results

    def _collect(self, results: list[PGresult]) -> Waits[None]:
        """Send what is left, and add the results with rows, or with an error."""
        pg = self._pg
        pg.pipeline_sync()
        while pg.flush():
            yield EVENT_READ | EVENT_WRITE
            pg.consume_input()
        while True:
            while pg.is_busy():
                yield EVENT_READ
                pg.consume_input()
            if result := pg.get_result():
                status = result.status
                if status == _SYNC:
                    return
                if status in _TOLD_BY:
                    results.append(result)
            elif pg.status != _OK:  # else it is between two results
                raise OperationalError("the connection is lost")


# -- steps -----------------------------------------------------------------------------


def lock(needs: Needs) -> Statement:
    """Lock what scripts need until the end of the transaction."""
    numbers = dict.fromkeys(map(hash_of, needs.shared), True)
    numbers |= dict.fromkeys(map(hash_of, needs.locked), False)
    order = sorted(numbers)
    return Statement(
        "lock and commit late" if needs.may_be_late else "lock",
        (_numbers(_INT8, order), _numbers(_BOOL, [*map(numbers.get, order)])),
    )


@lru_cache(maxsize=4096)
def hash_of(name: bytes) -> int:
    """Return the number of the advisory lock of a name; 64 bits, with a sign.

    The same as ``('x' || md5(name))::bit(64)::bigint`` in SQL.
    """
    digest = hashlib.md5(name, usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def read(names: Iterable[bytes]) -> Statement:
    """Read all rows of keys."""
    return Statement("read", (_array([*names]),))


def read_fields(name: bytes, fields: Iterable[bytes]) -> Statement:
    """Read some rows of a key."""
    return Statement("read fields", (name, _array([*fields])))


Said: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes]
"""What is assumed of cells, as elements of five arrays: their names, fields, kinds,
values, and numbers. The kind and the value of a cell that is absent are `NULL`; so are
those of a cell that is absent or below a number, and all other numbers."""


class Assumed(NamedTuple):
    """The conditions of `change`, which else changes nothing.

    Attributes:
        place: The timeline, and the oid of the table.
        process: The process of the server.
        earliest_us: The server's clock shows this or later.
        latest_us: It shows this or earlier.
        cells: The number of the cells in `said`, which is not 0.
        said: What is assumed of them.
    """

    place: bytes
    process: int
    earliest_us: int
    latest_us: int
    cells: int
    said: Sequence[Said]


def change(so: Assumed, changes: Changes, *, extends: bool) -> Statement:
    """Write changes if all is as assumed; else none.

    If one of them writes a new value, the cells in question are returned then.

    Args:
        so: What must be as assumed.
        changes: Either only deletes keys, or only writes. The ends of cells are in ms
            from now.
        extends: Whether nothing but the ends of locks is written.
    """
    columns = zip(_ASSUMED, zip(*so.said, strict=True), strict=True)
    given = (
        *(so.place, so.process.to_bytes(4, "big")),
        *(so.earliest_us.to_bytes(8, "big"), so.latest_us.to_bytes(8, "big")),
        *[_HEADER(1, 1, kind, so.cells, 1) + b"".join(one) for kind, one in columns],
    )
    if changes.wiped:
        return Statement("wipe if", (*given, _array([*changes.wiped])))
    if extends:
        written = changes.written.items()
        left = {element(name): cell.expires_at_ms for (name, _), cell in written}
        ends = [left.get(one[0]) for one in so.said]  # first of all, locks: one cell
        ends += [None] * (so.cells - len(ends))
        return Statement("extend if", (*given, _numbers(_INT8, ends)))
    return Statement("write if", (*given, *_columns(changes)))


def write(changes: Changes) -> list[Statement]:
    """Write changes, and send the messages when the transaction ends."""
    steps = []
    if changes.wiped:
        steps.append(Statement("wipe", (_array([*changes.wiped]),)))
    if changes.removed:
        names, fields = zip(*changes.removed, strict=True)
        places = _array(names), _array(fields)
        steps.append(Statement("remove", places))
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
        *(_array(names), _array(fields)),
        _array([kind.encode() for kind in kinds], _TEXT),
        *(_array(values), _numbers(_FLOAT8, scores), _numbers(_INT8, ends)),
    )


class Changed(NamedTuple):
    """The result of `change`.

    Attributes:
        now_us: The time of the server.
        place: Its timeline, and the oid of the table.
        process: Its process.
        is_so: Whether all was as assumed.
        rows: How many rows it has changed.
        cells: If not, the cells that were in question, without scores; None: they were
            not read.
    """

    now_us: int
    place: bytes
    process: int
    is_so: bool
    rows: int
    cells: list[Cell] | None


def changed(result: PGresult, so: Assumed) -> Changed:
    """Return what the result of `change` says about what was assumed."""
    get, from_bytes = result.get_value, int.from_bytes
    now, is_so, rows = [from_bytes(get(0, at) or b"", "big") for at in (0, 3, 4)]
    if is_so:
        return Changed(now, so.place, so.process, is_so=True, rows=rows, cells=None)
    return Changed(
        now,
        get(0, 1) or b"",
        from_bytes(get(0, 2) or b"", "big"),
        is_so=False,
        rows=rows,
        cells=[*cells_of(result, 1, 5)] if result.nfields > 5 else None,  # noqa: PLR2004
    )


def cells_of(result: PGresult, first: int = 0, column: int = 0) -> Iterator[Cell]:
    """Yield the cells of a result, from this row and this column on."""
    get, columns = result.get_value, range(column, column + 6)
    for row in range(first, result.ntuples):
        name, field, kind, value, score, ends = [get(row, at) for at in columns]
        yield Cell(
            name or b"",
            field or b"",
            (kind or b"").decode(),
            value,
            None if score is None else _DOUBLE.unpack(score)[0],
            None if ends is None else int.from_bytes(ends, "big", signed=True),
        )


def listen_name(channel: bytes) -> str:
    """Return the name of a channel in PostgreSQL: at most 63 bytes, without quotes."""
    return f"redlock_{hashlib.md5(channel, usedforsecurity=False).hexdigest()}"


# -- values in binary form ------------------------------------------------------------


def element(value: bytes) -> bytes:
    """Return bytes, or a text, as an element of an array."""
    return _LENGTH(len(value)) + value


def _array(values: Sequence[bytes | None], kind: int = _BYTEA) -> bytes:
    """Return an array of bytes, or of texts: one dimension from 1, maybe with NULLs."""
    return _HEADER(1, 1, kind, len(values), 1) + elements(values)


def _numbers(kind: int, values: Sequence[float | None]) -> bytes:
    """Return an array of a type of one size."""
    size, pack = _SIZES[kind]
    elements = [NULL if one is None else pack(size, one) for one in values]
    return _HEADER(1, 1, kind, len(values), 1) + b"".join(elements)


def elements(values: Iterable[bytes | None]) -> bytes:
    """Return bytes, or texts, as elements of an array."""
    return b"".join(
        [NULL if one is None else _LENGTH(len(one)) + one for one in values]
    )
