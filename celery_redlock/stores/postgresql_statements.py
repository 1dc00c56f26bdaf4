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
from typing import TYPE_CHECKING, NamedTuple

from psycopg import Error, OperationalError, errors
from psycopg.pq import ConnStatus, ExecStatus, Format

from celery_redlock.stores.keyspace import HEAD, Cell
from celery_redlock.stores.needs import STATE
from celery_redlock.stores.postgresql_table import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psycopg import Connection
    from psycopg.pq.abc import PGresult

    from celery_redlock.stores.connection import Waits
    from celery_redlock.stores.keyspace import Changes

_COLUMNS = "name, field, kind, value, score, expires_at"
_READ = f"SELECT {_COLUMNS} FROM {TABLE} WHERE "  # noqa: S608  (constants)
_REPLACE = (
    "ON CONFLICT (name, field) DO UPDATE SET kind = excluded.kind, "
    "value = excluded.value, score = excluded.score, expires_at = excluded.expires_at"
)
_NOW_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# The timeline, which is another one after a standby was promoted, and the oid of the
# table, which is another one after a dump took its place.
_PLACE = (
    "'t' || CASE WHEN pg_is_in_recovery() THEN '' "
    "ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END || 'r' || "
    f"'{TABLE}'::regclass::oid"
)
# Also the process of the server, which is another one behind a pooler in transaction
# mode.
_NOW = f"SELECT {_NOW_US} AS us, {_PLACE} AS place, pg_backend_pid() AS process"


def _found(columns: str) -> str:
    """Return the FROM item of the row of `each`, found by the index.

    As a plain join it may be planned as a scan of the table, while that is small.
    """
    return (
        f"LATERAL (SELECT {columns} FROM {TABLE} "  # noqa: S608
        "WHERE name = each.name AND field = each.field OFFSET 0)"
    )


# Conditions of what `postgresql_memory` assumes. Each is compared once.
_HERE = f"(SELECT {_PLACE}) = $1::text AND pg_backend_pid() = $2::int"
_FIELDS = ", ".join(sorted(f"'.{field.decode()}'" for field in STATE))
# The names of counters are numbers, so that one short scan finds the others.
_VOTES = (
    f"EXISTS (SELECT FROM {TABLE} "  # noqa: S608
    "WHERE name = $3 AND field = '' AND kind = 'hash') "
    f"AND ARRAY(SELECT field || value FROM {TABLE} WHERE name = $3::bytea "
    f"AND field > '.:' AND field IN ({_FIELDS}) AND kind = 'hash' ORDER BY field) "
    "= $4::bytea[]"
)
_IS_HELD = "field = '' AND kind = 'string' AND expires_at >= "
# The numbers are sorted, so that no two transactions wait for each other.
_LOCK = (
    "CASE WHEN {1} THEN pg_advisory_xact_lock_shared({0}) "
    "ELSE pg_advisory_xact_lock({0}) END"
)
_FEW = 3  # locks, for which an array takes longer
_LOCK_FEW = ", ".join(
    _LOCK.format(f"${at}::bigint", f"${at + 1}::bool") for at in range(1, 2 * _FEW, 2)
)
_LOCK_MANY = (
    f"{_LOCK.format('number', 'is_shared')} "
    "FROM unnest($1::bigint[], $2::bool[]) AS each (number, is_shared)"
)
# The commit of the transaction does not wait for the disk.
_LATE = "set_config('synchronous_commit', 'off', true)"
_TEXTS = {
    "begin": "BEGIN",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "lock": f"SELECT {_LOCK_FEW}",
    "lock many": f"SELECT {_LOCK_MANY}",
    "lock and commit late": f"SELECT {_LATE}, {_LOCK_FEW}",
    "lock many and commit late": f"SELECT {_LATE}, {_LOCK_MANY}",
    "now": _NOW,
    "read": f"{_READ}name = ANY($1::bytea[])",
    "read fields": f"{_READ}name = $1::bytea AND field = ANY($2::bytea[])",
    # Takes a free lock, if its counter is lower than its number.
    "grant": f"WITH raised AS (INSERT INTO {TABLE} AS counter "  # noqa: S608
    "(name, field, kind, value) SELECT $3, $5::bytea, 'hash', $6::bytea "
    f"WHERE {_HERE} AND {_VOTES} AND {_NOW_US} BETWEEN $7::bigint AND $8::bigint "
    f"AND NOT EXISTS (SELECT FROM {TABLE} WHERE name = $9::bytea AND field = '') "
    "ON CONFLICT (name, field) DO UPDATE SET value = excluded.value WHERE "
    "(octet_length(counter.value), counter.value) "
    "< (octet_length(excluded.value), excluded.value) "
    f"RETURNING {_NOW_US} AS us) "
    f"INSERT INTO {TABLE} (name, field, kind, value, expires_at) "
    "SELECT $9, '', 'string', $10::bytea, (us + 999) / 1000 + $11::bigint FROM raised "
    f"RETURNING {_NOW_US}",
    # Reads the lock in its place, if nothing was written: who asks is often refused.
    # That comes first, so that nothing else is compared where the lock was granted.
    "read holder": f"SELECT {_NOW_US}, kind, value, expires_at "  # noqa: S608
    f"FROM {TABLE} WHERE pg_current_xact_id_if_assigned() IS NULL "
    f"AND name = $5::bytea AND field = '' AND {_HERE} AND {_VOTES}",
    # Releases a lock for which no call waits.
    "free": f"DELETE FROM {TABLE} WHERE name = $3::bytea "  # noqa: S608
    f"AND {_IS_HELD}{_NOW_US} / 1000 AND value = $4::bytea AND {_HERE} AND NOT EXISTS "
    f"(SELECT FROM {TABLE} WHERE name = $5::bytea AND field = '') RETURNING {_NOW_US}",
    # Moves the ends of locks.
    "renew": f"UPDATE {TABLE} AS lock SET expires_at = (us + 999) / 1000 + ttl_ms "  # noqa: S608
    f"FROM (SELECT {_NOW_US} AS us OFFSET 0) AS now CROSS JOIN unnest($5::bytea[], "
    "$6::bytea[], $7::bigint[]) AS each (name, value, ttl_ms) CROSS JOIN LATERAL "
    f"(SELECT ctid AS at FROM {TABLE} WHERE name = each.name AND {_IS_HELD}us / 1000 "
    "OFFSET 0) AS cell WHERE lock.ctid = at AND lock.value = each.value "
    f"AND {_HERE} AND {_VOTES} RETURNING us",
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
_LENGTH, _NULL = struct.Struct("!i").pack, b"\xff\xff\xff\xff"
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


def lock(
    exclusive: Iterable[bytes], shared: Iterable[bytes], *, is_late: bool
) -> Statement:
    """Lock names until the end of the transaction.

    Args:
        exclusive: What no other transaction may lock meanwhile.
        shared: What others may lock in this way, too.
        is_late: Whether the commit need not wait for the disk.
    """
    numbers = dict.fromkeys(map(hash_of, shared), True)
    numbers |= dict.fromkeys(map(hash_of, exclusive), False)
    order = sorted(numbers)
    late = " and commit late" if is_late else ""
    if not 0 < len(order) <= _FEW:
        arrays = _numbers(_INT8, order), _numbers(_BOOL, [*map(numbers.get, order)])
        return Statement(f"lock many{late}", arrays)
    order += order[-1:] * (_FEW - len(order))  # twice is harmless
    pairs = [(_int8(number), b"\1" if numbers[number] else b"\0") for number in order]
    return Statement(f"lock{late}", [one for pair in pairs for one in pair])


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


class Assumed(NamedTuple):
    """The assumptions of a statement, which changes nothing if one is wrong.

    Attributes:
        place: The timeline, and the oid of the table.
        process: The process of the server, in binary form.
        meta: The hash with the state of the node.
        state: What this must be, see `state_of`.
    """

    place: bytes
    process: bytes
    meta: bytes
    state: bytes


class Held(NamedTuple):
    """A lock as a statement leaves it.

    Attributes:
        name: Its name.
        value: Its value; None: there is no such lock then.
        ttl_ms: Milliseconds from now to its end.
    """

    name: bytes
    value: bytes | None
    ttl_ms: int


def state_of(cells: Iterable[Cell]) -> bytes:
    """Return the state of a node as it is compared: its fields, in their order."""
    return _array(sorted(cell.field + (cell.value or b"") for cell in cells))


def grant(
    so: Assumed, lock: Held, counter: bytes, number: int, times_us: tuple[int, int]
) -> Statement:
    """Take a lock that is free.

    Args:
        so: The assumptions.
        lock: The lock as it is then.
        counter: The field of its fence counter.
        number: The counter must be lower, and is this then.
        times_us: The server's clock shows a time between these.
    """
    digits, times = b"%d" % number, map(_int8, times_us)
    ends = _int8(lock.ttl_ms)
    return Statement(
        "grant", (*so, counter, digits, *times, lock.name, lock.value, ends)
    )


def read_holder(so: Assumed, lock: bytes) -> Statement:
    """Read a lock, unless the transaction has changed anything."""
    return Statement("read holder", (*so, lock))


def holder_of(lock: bytes, result: PGresult) -> Cell:
    """Return the lock that `read_holder` has read."""
    kind, value, ends = [result.get_value(0, at) for at in range(1, 4)]
    return Cell(lock, HEAD, (kind or b"").decode(), value, None, _int8_in(ends))


def free(
    place: bytes, process: bytes, lock: bytes, value: bytes, queue: bytes
) -> Statement:
    """Release a lock that has this value, if it has no such wait queue."""
    return Statement("free", (place, process, lock, value, queue))


def renew(so: Assumed, held: Sequence[Held]) -> Statement:
    """Renew the locks that are as this connection left them."""
    names, values, ttls = zip(*held, strict=True)
    arrays = _array(names), _array(values), _numbers(_INT8, ttls)
    return Statement("renew", (*so, *arrays))


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


def now_us_of(result: PGresult) -> int:
    """Return the time of the server in the first row, in microseconds since 1970."""
    return int.from_bytes(result.get_value(0, 0) or b"", "big")


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
            _int8_in(ends),
        )


def listen_name(channel: bytes) -> str:
    """Return the name of a channel in PostgreSQL: at most 63 bytes, without quotes."""
    return f"redlock_{hashlib.md5(channel, usedforsecurity=False).hexdigest()}"


# -- values in binary form ------------------------------------------------------------


def _int8(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def _int8_in(value: bytes | None) -> int | None:
    return None if value is None else int.from_bytes(value, "big", signed=True)


def _array(values: Sequence[bytes | None], kind: int = _BYTEA) -> bytes:
    """Return an array of bytes, or of texts: one dimension from 1, maybe with NULLs."""
    elements = [_NULL if one is None else _LENGTH(len(one)) + one for one in values]
    return _HEADER(1, 1, kind, len(values), 1) + b"".join(elements)


def _numbers(kind: int, values: Sequence[float | None]) -> bytes:
    """Return an array of a type of one size."""
    size, pack = _SIZES[kind]
    elements = [_NULL if one is None else pack(size, one) for one in values]
    return _HEADER(1, 1, kind, len(values), 1) + b"".join(elements)
