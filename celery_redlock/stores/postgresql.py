"""PostgreSQL as a store: one table, and one transaction for what is sent together.

::

    lock what the commands need; if it is as assumed, write              1 round trip

    BEGIN; lock what the scripts need; read the clock; read the rows     1st round trip
    the scripts run here
    DELETE, INSERT, NOTIFY; COMMIT                                       2nd

The first way is for commands that take, renew or release one lock each. It is enough
where no other client competes, and where another one holds the lock. All else runs on
the second way: what has turned out to be otherwise, too. See ``postgresql_memory``.

Locks are advisory ones of the transaction, by the hash of a name: two names with one
hash cost a wait and nothing else. All are taken in one order, so that no two
transactions wait for each other. What only reads takes one statement and no lock.

The clock is the one of the server. The run id is the identity of the server, its
*timeline*, which changes when a standby is promoted and when a backup is restored, and
the oids of the database and of the table, which change when a copy or a dump takes
their place: each may have forgotten locks. So the restart guard keeps such a server out
of the vote for one max_ttl. A crash changes none of them, and loses nothing that was
granted: a grant returns after its commit was written to disk.

A database with several tables of our name gives no vote to a client whose URL does not
say in which schema its table is: another client with another ``search_path`` would get
the same lock from the other table.

What this rests on is asked with each transaction (the run id, whether the server is a
standby, its process behind a pooler), set for the session (``synchronous_commit``, the
encoding), or refused by the server when it has changed (privileges, read-only). Two
facts are none of these. The doctor asks for ``fsync`` each time that it runs. A server
that gets our table by logical replication gives no vote to a client that connects.

A commit whose wait for a synchronous standby was cancelled is reported as done, with a
warning; it does not count as done here.

A lock is released by a DELETE, and changes its holder by a DELETE and an INSERT, while
a renewal is an UPDATE. So a transaction that reads the row of its lock FOR KEY SHARE
(``Lease.ensure``) keeps all others out until it ends, and does not hinder its own
renewal.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import socket
from functools import partial
from selectors import EVENT_WRITE
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import ClientCursor, capabilities, errors
from psycopg.pq import ConnStatus, PGconn, TransactionStatus
from psycopg.rows import tuple_row

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.errors import ConfigurationError
from celery_redlock.stores import postgresql_url
from celery_redlock.stores.commands import needs_of, run
from celery_redlock.stores.connection import (
    DROPPED,
    GRANT,
    MAKE,
    NOT_ACCEPTED,
    REJECTED,
    SILENT,
    StoreError,
    readable,
)
from celery_redlock.stores.keyspace import Cell, Changes, NotRemembered, StoreKeyspace
from celery_redlock.stores.postgresql_memory import Memory
from celery_redlock.stores.postgresql_statements import (
    Statement,
    Statements,
    cells_of,
    hash_of,
    holder_of,
    listen_name,
    lock,
    now_us_of,
    read,
    read_fields,
    write,
)
from celery_redlock.stores.postgresql_table import CREATE, TABLE
from celery_redlock.stores.server_clock import ServerTime

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from psycopg.errors import Diagnostic
    from psycopg.pq.abc import PGresult

    from celery_redlock.stores.connection import Command, Waits
    from celery_redlock.stores.needs import Needs

    _Way = Callable[[Sequence[Command]], Waits[list[Any]]]

T = TypeVar("T")

# For the session. In a transaction, a lock of rows or names is waited for this long. A
# shorter statement_timeout of a role would end the wait as another error. It is not
# needed: a client cancels what takes longer than its own time limit.
# The server ends the transaction of a process that is paused between its round trips:
# else what it has locked would be taken for as long as its connection lives.
# The plan of a statement is made once, for a table of any size: each row by the index.
_SESSION = (
    "SELECT set_config('lock_timeout', '200', false), "
    "set_config('statement_timeout', '0', false), "
    "set_config('idle_in_transaction_session_timeout', '5000', false), "
    "set_config('default_transaction_isolation', 'read committed', false), "
    "set_config('plan_cache_mode', 'force_generic_plan', false), "
    "set_config('enable_seqscan', 'off', false), "
    "set_config('enable_hashjoin', 'off', false), "
    "set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false), "
    "set_config('enable_bitmapscan', 'off', false), "
    # The warning that it has not waited for a standby must be told: `_note_cancelled`.
    "set_config('client_min_messages', 'warning', false), "
    # Rows that a policy hides are an error: a release would take them for released.
    "set_config('row_security', 'off', false)"
)
_FACTS = (
    "SELECT current_setting('server_version'), pg_is_in_recovery(), "
    "to_regclass(%s) IS NOT NULL, (SELECT system_identifier FROM pg_control_system()) "
    "|| 'd' || (SELECT oid FROM pg_database WHERE datname = current_database()), "
    "current_setting('transaction_read_only'), current_setting('fsync'), "
    # For the session: a reload of the server's settings does not change it any more. A
    # grant must be on disk when it is told, and on that of a synchronous standby.
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, false), "
    "(SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), "
    # Of those that get its WAL, a standby replays it. An archive tells what it has
    # written only; a stream of changes has a logical slot. Users without
    # pg_read_all_stats see that there are others, and not what they do.
    "(SELECT CASE WHEN count(*) > count(sync_state) THEN 'unknown' "
    "ELSE (count(*) FILTER (WHERE sync_state = 'async' AND state <> 'backup' "
    "AND (write_lsn IS NULL OR replay_lsn IS NOT NULL)))::text END "
    "FROM pg_stat_replication WHERE NOT EXISTS (SELECT FROM pg_replication_slots "
    "WHERE slot_type = 'logical' AND active_pid = pid)), "
    "pg_backend_pid(), "
    # Subscriptions that write our table. Users may not read all that is known of them.
    "(SELECT string_agg(subname::text, ', ' ORDER BY subname) FROM pg_subscription "
    "WHERE subenabled AND subdbid = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND subname IN (SELECT subname FROM pg_stat_subscription "
    "JOIN pg_subscription_rel ON srsubid = subid WHERE srrelid = to_regclass(%s)))"
)
# Who keeps the oldest dead rows from being deleted, and for how many transactions.
# Users without pg_read_all_stats see their own sessions.
_OLDEST = (
    "SELECT holder, age FROM ("
    "SELECT 'session ' || pid || ' (' || application_name || ')' AS holder, "
    "age(backend_xmin) AS age FROM pg_stat_activity "
    "WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() "
    "AND coalesce(datname, current_database()) = current_database() "
    "UNION ALL SELECT 'prepared transaction ' || gid, age(transaction) "
    "FROM pg_prepared_xacts WHERE database = current_database() "
    "UNION ALL SELECT 'replication slot ' || slot_name, age(xmin) "
    "FROM pg_replication_slots WHERE xmin IS NOT NULL"
    ") AS each ORDER BY age DESC LIMIT 1"
)
_NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE")
_SCHEMAS = (
    "SELECT coalesce(array_agg(nspname::text ORDER BY nspname), '{}') FROM pg_class "
    "JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE relname = %s AND relkind IN ('r', 'p', 'v', 'f') AND relpersistence <> 't'"
)
_PRIVILEGES = (
    "SELECT needed FROM (SELECT %s::text AS name, unnest(%s::text[]) AS needed) "
    "AS each "
    "WHERE NOT has_table_privilege(name, needed)"
)
_SWEEP_EVERY, _SWEPT = 60.0, 1000  # seconds, and keys at once
_LISTENERS = 1_382_308_468  # class of the advisory locks of listeners: "Rdlt"
_HOLD = (
    f"SELECT (SELECT value FROM {TABLE} WHERE name = %s AND field = '.identity'), "  # noqa: S608
    f"(SELECT count(*) FROM (SELECT FROM {TABLE} WHERE name = ANY(%s) "
    "AND field = '' AND substr(value, 1, %s) = %s AND (expires_at IS NULL OR "
    "expires_at >= floor(extract(epoch FROM clock_timestamp()) * 1000)) "
    "FOR KEY SHARE) AS held), current_setting('transaction_isolation')"
)
_READS_NEW_ROWS = {"read committed", "read uncommitted"}
# What libpq says of an attempt to connect. Before what the server replied it puts the
# severity, in the language of the server, and two blanks.
_FAILED, _REFUSED = "failed: ", "onnection refused"
_SEVERITY = re.compile(r"\w+:  ")
_SOON = 1.0  # seconds for a connection without a login
_STANDBY_WAIT = "SyncRepWaitForLSN"  # PostgreSQL's function that waits for standbys
_ALONE = (
    "has committed without its synchronous standby, since the wait for that was "
    "cancelled (pg_cancel_backend); end what cancels it"
)
_IN_USE = (
    "another client is about to change this key; if its process is paused, the server "
    "ends its transaction after 5 s"
)
_TRANSACTION_MODE = (
    "goes through a pooler in transaction mode; use session mode, or the address of "
    "the server itself"
)
_WRITTEN = (
    f"gets the table {TABLE} by the subscription {{0}}: what deletes an ended lock on "
    "the other server would delete that of another call here; when no client uses the "
    "other server any more, ALTER SUBSCRIPTION {0} DISABLE, or drop it"
)
_ELSEWHERE = (
    "The connection leads to another database than redlock_nodes, so "
    "`lease.ensure(connection)` protects nothing there. Use the fence instead."
)


class PostgreSQL:
    """One connection to a PostgreSQL server: see ``stores.connection.Store``."""

    grants = f"GRANT {', '.join(_NEEDED)} ON {TABLE} TO {{user}};"

    def __init__(self, url: str, timeout: float) -> None:
        try:
            self._connection = _Connection.connect(
                url,
                autocommit=True,
                cursor_factory=ClientCursor,
                connect_timeout=max(2, round(timeout)),
                application_name="celery-redlock",
                client_encoding="utf8",  # else texts of an SQL_ASCII database are bytes
            )
        except psycopg.Error as error:
            raise StoreError(_unreachable(error, url)) from None
        self._connection.patience = timeout
        self._cancelled: list[str] = []  # waits for a standby
        note = partial(_note_cancelled, self._cancelled)
        self._connection.add_notice_handler(note)
        self._fileno = self._connection.fileno()
        self._cursor = self._connection.cursor()
        self._swept_at = SYSTEM_CLOCK.monotonic()
        self._memory = Memory()
        try:
            self._learn(url)
            self._statements = Statements(self._connection)
            self._connection.wait(self._statements.prepare())
        except psycopg.Error as error:
            self.close()
            raise StoreError(_unusable(error)) from None
        except StoreError:
            self.close()
            raise

    name_of = staticmethod(postgresql_url.name_of)
    hosts_of = staticmethod(postgresql_url.hosts_of)

    @staticmethod
    def emptied(prefix: str) -> str:
        """Return how to delete all keys of a deployment, for operators."""
        head = f"{prefix}:"
        text, size = head.replace("'", "''"), len(head.encode())
        return f"DELETE FROM {TABLE} WHERE substr(name, 1, {size}) = '{text}';"  # noqa: S608

    @classmethod
    def members_of(cls, _url: str) -> dict[str, str]:
        """Return none: of several hosts, one is the primary server."""
        return {}

    @classmethod
    def prepare(cls, url: str, timeout: float) -> None:
        """Make the table, unless it is there."""
        wait = max(2, round(timeout))
        try:
            opened = _Connection.connect(url, connect_timeout=wait)
            opened.patience = timeout  # also for the commit, which waits for standbys
            with contextlib.closing(opened), opened as connection:
                # CREATE TABLE IF NOT EXISTS asks for the right to make one that exists.
                found = connection.execute("SELECT to_regclass(%s)", (TABLE,))
                if found.fetchone() == (None,):
                    _refuse_other_tables(connection.cursor(), url, most=0)
                    connection.execute(CREATE)
        except psycopg.OperationalError as error:
            raise StoreError(_unreachable(error, url)) from None
        except psycopg.Error as error:
            text = f"did not let us make the table {TABLE}: {_reason(error)}"
            if isinstance(error, errors.InsufficientPrivilege):
                text += f"; run this again as a user who may, in the URL, and {GRANT}"
            raise StoreError(text) from None

    def _learn(self, url: str) -> None:
        """Learn what the server is; refuse one that cannot be a store."""
        cursor = self._cursor
        cursor.execute(_SESSION)
        found = _row(cursor, _FACTS, TABLE, TABLE)
        version, in_recovery, has_table, identifier, is_read_only, *rest = found
        self._identifier = identifier.encode()
        if not has_table:
            _refuse_hidden_table(cursor, url)
            raise StoreError(
                f"has no table {TABLE}; {MAKE}, or the migrations of "
                f"celery_redlock.contrib.django. {DROPPED}"
            )
        _refuse_other_tables(cursor, url, most=1)
        fsync, commits, is_encrypted, standbys, self._process, writers = rest
        cursor.execute(_PRIVILEGES, (TABLE, list(_NEEDED)))
        lacking = [privilege for (privilege,) in cursor.fetchall()]
        denied = f"denies our user {', '.join(lacking)} on the table {TABLE}"
        if "SELECT" in lacking:
            raise StoreError(f"{denied}; {GRANT}")
        oldest = _row(cursor, _OLDEST) or ("", 0)
        self.info = {
            "store": f"PostgreSQL {version.split()[0]}",
            "fsync": fsync,
            "synchronous_commit": commits,
            "encrypted": "yes" if is_encrypted else "no",
            "asynchronous_standbys": standbys,
            "denied": denied if lacking else "",
            "oldest_snapshot": oldest[0],
            "oldest_snapshot_age": str(oldest[1]),
            # A pooler tells a number of its own when a client connects.
            "pooler": "no"
            if self._process == self._connection.info.backend_pid
            else "yes",
        }
        if in_recovery:
            self.info["unfit"] = "is a standby; use the primary server"
        elif is_read_only == "on":
            self.info["unfit"] = (
                "is read-only; use a user and a database without "
                "default_transaction_read_only"
            )
        elif writers:
            self.info["unfit"] = _WRITTEN.format(writers)

    # -- a transaction ---------------------------------------------------------------

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out in one transaction, and return the replies."""
        return self._connection.wait(self.running(commands))

    def running(self, commands: Sequence[Command]) -> Waits[list[Any]]:
        """Do what ``run`` does, and yield where it waits for the server."""
        replies = yield from self._run_by(self._run_assumed, commands)
        pairs = zip(commands, replies, strict=True)
        if left := [command for command, reply in pairs if reply is None]:
            others = iter((yield from self._run_by(self._attempt, left)))
            replies = [next(others) if one is None else one for one in replies]
        return replies

    def _run_by(self, way: _Way, commands: Sequence[Command]) -> Waits[list[Any]]:
        """Run commands in this way; each alone if one of them hinders the others."""
        try:
            replies = yield from way(commands)
        except errors.InvalidSqlStatementName as error:
            raise StoreError(_unusable(error)) from None
        except psycopg.Error as error:
            if self._connection.closed or isinstance(error, psycopg.InterfaceError):
                raise StoreError(f"lost its connection: {_reason(error)}") from None
            yield from self._roll_back()
            if self._connection.closed:
                raise StoreError(f"lost its connection: {_reason(error)}") from None
            if len(commands) > 1:
                replies = []
                for one in commands:
                    replies += yield from self.running([one])
                return replies
            if isinstance(error, (errors.LockNotAvailable, errors.DeadlockDetected)):
                return (yield from self._run_by(self._read_blocked, commands))
            reason = _reason(error)
            return [ErrorReply(f"ERR {reason}{_remedy(reason)}")]
        if self._cancelled:
            raise StoreError(_ALONE)
        return replies

    def _run_assumed(self, commands: Sequence[Command]) -> Waits[list[Any]]:
        """Do what is assumed to be right for commands: one round trip.

        If it is not so, and a lock is asked for, the server returns it instead. If the
        script changes nothing there, that is its reply: another client holds the lock.
        None in place of a reply: nothing was done for this command.
        """
        plan = self._memory.plan(commands, self._process)
        if plan is None:
            return [None] * len(commands)
        sent_at = SYSTEM_CLOCK.monotonic()
        try:
            results = yield from self._statements.carry_out(plan.statements)
        except errors.ReadOnlySqlTransaction:  # who changes nothing gets a reply
            yield from self._roll_back()
            return [None] * len(commands)
        replies = self._memory.done(plan, results, sent_at)
        if replies == [None] and len(results) > 2 and results[2].ntuples:  # noqa: PLR2004
            return [self._run_read(commands[0], results[2])]
        yield from self._sweep()
        return replies

    def _run_read(self, command: Command, found: PGresult) -> Any:
        """Run on the holder that was read; return None if that changes something."""
        lock, meta = command[3:5]
        time = ServerTime(now_us_of(found), now_us_of(found))
        replid = self._identifier + self._memory.place
        keys = StoreKeyspace(None, replid=replid, time=time)
        cells = [*self._memory.state(meta), holder_of(lock, found)]
        keys.enter([lock], cells, [meta])
        try:
            reply = run(command, keys)
        except NotRemembered:
            return None
        return None if keys.changes else reply

    def _told(self, now_us: int, place: bytes, process: int, sent_at: float) -> None:
        """Note the facts that the server adds to each transaction."""
        if process != self._process:
            raise StoreError(_TRANSACTION_MODE)
        self._memory.told(now_us, place, sent_at)

    def _attempt(
        self, commands: Sequence[Command], *, sees_ended: bool = False
    ) -> Waits[list[Any]]:
        needs = needs_of(commands)
        is_read = needs.is_read or sees_ended
        keys = yield from self._begin(needs, is_read=is_read, sees_ended=sees_ended)
        replies = [run(command, keys) for command in commands]
        if is_read:
            if keys.changes or keys.is_changed:
                raise errors.LockNotAvailable(_IN_USE)
            return replies
        keys.finish()
        if not keys.changes and not keys.is_changed:
            yield from self._statements.carry_out([Statement("rollback")])
            return replies
        steps = [*write(keys.changes), Statement("commit")]
        yield from self._statements.carry_out(steps)
        self._memory.ran(commands, replies, needs)
        self._memory.wrote(keys.changes, needs)
        yield from self._sweep()
        return replies

    def _begin(
        self, needs: Needs, *, is_read: bool, sees_ended: bool
    ) -> Waits[StoreKeyspace]:
        """Begin a transaction, and load what is needed: one round trip."""
        steps = [] if is_read else [Statement("begin")]
        if not is_read and (needs.shared or needs.exclusive):
            late = needs.may_be_late
            steps.append(lock(needs.locked, needs.shared, is_late=late))
        steps.append(Statement("now"))
        every = {**needs.fields, **needs.large}.items()
        parts = {name: fields for name, fields in every if name not in needs.names}
        loads = [read(needs.names)] if needs.names else []
        loads += [
            read_fields(name, [b"", *(b"." + one for one in fields)])
            for name, fields in parts.items()
        ]
        sent_at = SYSTEM_CLOCK.monotonic()
        results = yield from self._statements.carry_out([*steps, *loads])
        now, *rows = results[len(results) - len(loads) - 1 :]
        time, place, process = [now.get_value(0, at) or b"" for at in range(3)]
        now_us = int.from_bytes(time, "big")
        self._told(now_us, place, int.from_bytes(process, "big"), sent_at)
        keys = StoreKeyspace(
            self,
            replid=self._identifier + place,
            time=ServerTime(now_us, now_us),
            sees_ended=sees_ended,
        )
        cells = [cell for result in rows for cell in cells_of(result)]
        self._memory.read(needs, cells)
        keys.enter(needs.names, cells, parts)
        return keys

    def _read_blocked(self, commands: Sequence[Command]) -> Waits[list[Any]]:
        """Reply to a script that another transaction hinders.

        A transaction that has called ``Lease.ensure`` keeps its lock, also past the end
        of the ttl: who asks for it is told that it is held.
        """
        try:
            return (yield from self._attempt(commands, sees_ended=True))
        except errors.LockNotAvailable as error:  # in reading, too: it is the table
            reason = _reason(error)
            return [ErrorReply(f"BUSY {reason}{_remedy(reason)}")]

    def _roll_back(self) -> Waits[None]:
        with contextlib.suppress(psycopg.Error):
            yield from self._statements.carry_out([Statement("rollback")])

    def _sweep(self) -> Waits[None]:
        """Delete keys that ended, now and then; every process does."""
        now = SYSTEM_CLOCK.monotonic()
        if now - self._swept_at < _SWEEP_EVERY:
            return
        self._swept_at = now
        # Its error must not hide what the commit has done.
        with contextlib.suppress(psycopg.Error):
            steps = [Statement("sweep", (_SWEPT.to_bytes(4, "big"),))]
            yield from self._statements.carry_out(steps)

    # -- for the keyspace and the commands: blocking, while a script runs --------------

    def load(self, names: Sequence[bytes]) -> Iterable[Cell]:
        """Return all rows of these keys."""
        rows = self._connection.wait(self._statements.carry_out([read(names)]))
        return cells_of(rows[0])

    def flush(self, changes: Changes) -> None:
        """Write these changes, which the transaction may still take back."""
        if steps := write(changes):
            self._connection.wait(self._statements.carry_out(steps))

    def zcard(self, name: bytes) -> int:
        """Return how many members the rows of a sorted set say that it has."""
        return self._count("TRUE", name)

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many of them come before this one."""
        field = b"." + member
        its_score = f"(SELECT score FROM {TABLE} WHERE name = %s AND field = %s)"  # noqa: S608
        return self._count(
            f"(score, field) < ({its_score}, %s)", name, name, field, field
        )

    def _count(self, where: str, *values: Any) -> int:
        of_members = f"FROM {TABLE} WHERE name = %s AND field <> '' AND {where}"
        return int(_row(self._cursor, f"SELECT count(*) {of_members}", *values)[0])

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this."""
        self._cursor.execute(
            f"SELECT field FROM {TABLE} WHERE name = %s AND field <> '' "  # noqa: S608
            "AND score <= %s ORDER BY score, field LIMIT %s",
            (name, most, count),
        )
        return [field[1:] for (field,) in self._cursor.fetchall()]

    def listens(self, channel: bytes) -> bool:
        """Tell whether a process listens on this channel."""
        found = _row(
            self._cursor,
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND "
            "classid = %s AND objid = %s AND objsubid = 2)",
            _LISTENERS,
            _listener(channel),
        )
        return bool(found[0])

    def scan(self, head: bytes, now_ms: int) -> list[bytes]:
        """Return the names of the keys that begin so and have not ended by then."""
        self._cursor.execute(
            f"SELECT name FROM {TABLE} WHERE field = '' AND substr(name, 1, %s) = %s "  # noqa: S608
            "AND (expires_at IS NULL OR expires_at >= %s)",
            (len(head), head, now_ms),
        )
        return [name for (name,) in self._cursor.fetchall()]

    @staticmethod
    def hold_in(
        connection: Any, names: Sequence[str], token: str, meta: str, identity: str
    ) -> bool:
        """Lock the rows of locks in a transaction of the caller, until its end.

        A transaction that gives a lock to another holder waits for that, or gives up.
        A renewal does not.

        Args:
            connection: Of a driver, of Django or of SQLAlchemy, in a transaction.
            names: The names of the locks.
            token: Of their holder.
            meta: The name of the hash with the identity of the node.
            identity: What it must be.

        Returns:
            Whether all of the locks are there, have not ended, and have this token.

        Raises:
            ConfigurationError: The connection is in no transaction, or in one that
                reads old rows; it is asynchronous, or leads to another database.
        """
        if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
            kind = type(connection)
            name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
            raise ConfigurationError(
                "`lease.ensure(connection)` takes a connection of psycopg, Django or "
                f"SQLAlchemy, and this is a {name}. Use a synchronous connection, or "
                "the fence instead."
            )
        raw = _driver_connection(connection)
        start, locks = f"{token}\n".encode(), [name.encode() for name in names]
        with _cursor_of(raw) as cursor:
            try:
                cursor.execute(_HOLD, (meta.encode(), locks, len(start), start))
            except Exception as error:
                if getattr(error, "sqlstate", None) == "42P01":  # undefined table
                    raise ConfigurationError(_ELSEWHERE) from error
                raise
            found, held, isolation = cursor.fetchone()
        if isinstance(isolation, bytes):  # by psycopg, of a database in SQL_ASCII
            isolation = isolation.decode()
        status = getattr(getattr(raw, "info", None), "transaction_status", None)
        if status is not None and not status:
            raise ConfigurationError(
                "The connection is in no transaction, so `lease.ensure(connection)` "
                "keeps no other client out. Begin one first, such as by "
                "`transaction.atomic()` or `connection.transaction()`."
            )
        if found is None or bytes(found).decode() != identity:
            raise ConfigurationError(_ELSEWHERE)
        if isolation not in _READS_NEW_ROWS:
            raise ConfigurationError(
                f"The transaction is {isolation.upper()}. `lease.ensure(connection)` "
                "would see the lock as it was when the transaction began. Use READ "
                "COMMITTED for it, or the fence instead."
            )
        return bool(held == len(set(names)))

    # -- listening -------------------------------------------------------------------

    def listen(self, channel: bytes, until_closed: socket.socket) -> Iterator[bytes]:
        """Yield the messages on a channel, until the socket can be read."""
        try:
            self._cursor.execute(f"LISTEN {listen_name(channel)}")
            self._cursor.execute("SET lock_timeout TO 0")
            numbers = _LISTENERS, _listener(channel)
            self._cursor.execute("SELECT pg_advisory_lock_shared(%s, %s)", numbers)
            yield b""
            watched: list[Any] = [self._connection.fileno(), until_closed]
            while until_closed not in readable(*watched):
                for notify in self._connection.notifies(timeout=0):
                    yield notify.payload.encode()
        except psycopg.Error as error:
            raise StoreError(f"lost its connection: {_reason(error)}") from None

    # -- the socket, and the end -----------------------------------------------------

    def fileno(self) -> int:
        """Return the number of the socket that leads to the server."""
        return self._fileno

    def check(self) -> None:
        """Read notices of the server between requests.

        Raises:
            StoreError: It has closed the connection.
        """
        try:
            self._connection.pgconn.consume_input()
        except psycopg.Error as error:
            raise StoreError(f"lost its connection: {_reason(error)}") from None

    def interrupt(self) -> None:
        """End the wait of another thread."""
        with contextlib.suppress(OSError, psycopg.Error):
            copy = socket.socket(fileno=os.dup(self._connection.fileno()))
            with copy:
                copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Connection(psycopg.Connection[Any]):
    """A connection on which nothing blocks without an end.

    Attributes:
        patience: Seconds for an answer of the server.
        has_answered: Whether it has answered a query of ours. A pooler accepts clients
            for which it has no connection to the server.
    """

    patience = 5.0
    has_answered = False

    def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        """Carry out requests of the driver, or ours (`Waits`); return the result."""
        ready = None
        try:
            while True:
                events = gen.send(ready)
                if not readable(self, events=events, timeout=self.patience):
                    raise StoreError(self._late())
                ready = events  # the driver tries each of them
        except StopIteration as end:
            self.has_answered = True
            result: T = end.value
            return result

    def close(self) -> None:
        """Close it, and cancel what the server has not finished.

        Else a commit that waits for a standby would go on waiting, in one more session
        of the server at each try. The caller sends again what must be done.
        """
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE and (
            capabilities.has_cancel_safe()  # without it, there is no time limit
        ):
            with contextlib.suppress(psycopg.Error):
                self.cancel_safe(timeout=self.patience)
        super().close()

    def _late(self) -> str:
        late = f"did not answer within {self.patience:g} s"
        return late if self.has_answered else f"accepted us and {late}; {_POOLER}"


def _driver_connection(connection: Any) -> Any:
    """Return the driver's connection under one of Django or SQLAlchemy, or itself."""
    if hasattr(connection, "ensure_connection"):  # Django
        connection.ensure_connection()
        return connection.connection
    if callable(getattr(connection, "connection", None)):  # a session of SQLAlchemy
        connection = connection.connection()
    pooled = getattr(connection, "connection", None)
    return getattr(pooled, "driver_connection", None) or connection


def _cursor_of(raw: Any) -> Any:
    """Return a cursor of the caller's connection, with rows that are tuples.

    The caller may have chosen another kind of rows for it (``dict_row``), or of
    cursors, which do not know ``%s`` (``RawCursor``).
    """
    if isinstance(raw, psycopg.Connection):
        return ClientCursor(raw, row_factory=tuple_row)
    return raw.cursor()


def _row(cursor: psycopg.Cursor[Any], query: str, *values: Any) -> Any:
    """Return the first row of a query."""
    cursor.execute(query, values)
    return cursor.fetchone()


def _refuse_other_tables(cursor: psycopg.Cursor[Any], url: str, *, most: int) -> None:
    """Refuse a database with more tables of our name, if the URL does not say which.

    Raises:
        StoreError: There are more than so many.
    """
    if postgresql_url.search_path_of(url):
        return
    schemas: list[str] = _row(cursor, _SCHEMAS, TABLE)[0]
    if len(schemas) > most:
        several = "schemas" if len(schemas) > 1 else "schema"
        raise StoreError(
            f"has a table {TABLE} in the {several} {', '.join(schemas)}, and "
            "redlock_nodes does not say which is ours: clients with another "
            "search_path would get the same locks; write it into the URL of all "
            f"clients, such as ?options=-csearch_path%3D{schemas[0]}, or drop the "
            "tables that none uses"
        )


def _refuse_hidden_table(cursor: psycopg.Cursor[Any], url: str) -> None:
    """Refuse a database that has our table where our user does not see it.

    Raises:
        StoreError: It is so. The text says in which schema it is.
    """
    ours = postgresql_url.search_path_of(url)
    for schema in _row(cursor, _SCHEMAS, TABLE)[0]:
        if not ours or schema in re.findall(r"[^\s,\"]+", ours):
            raise StoreError(
                f"has the table {TABLE} in the schema {schema}, where our user does "
                f"not see it; GRANT USAGE ON SCHEMA {schema} to it, and write the "
                "schema into the URL of all clients: "
                f"?options=-csearch_path%3D{schema}"
            )


def _note_cancelled(cancelled: list[str], notice: Diagnostic) -> None:
    """Note that the server has ended its wait for a standby, and not got an answer.

    The text is in the language of the server; the name of its function is not.
    """
    if notice.source_function == _STANDBY_WAIT:
        cancelled.append(notice.message_primary or "")


def _listener(channel: bytes) -> int:
    return hash_of(channel) & 0x7FFFFFFF


def _unreachable(error: psycopg.Error, url: str) -> str:
    """Return why there is no connection, to read on after the name of the node."""
    # libpq puts its own words, and the address that it tried, before each reason.
    lines = [line for line in str(error).splitlines() if _FAILED in line]
    told = [line.rpartition(_FAILED)[2].strip().rstrip(".") for line in lines]
    reason = min(
        told,  # of several servers, or addresses of one, of which some may be down
        key=lambda it: (not _SEVERITY.match(it), _REFUSED in it),
        default=_reason(error),
    )
    said = _SEVERITY.match(reason)
    if _REFUSED in reason:
        return "refused the connection"
    if "authentication failed" in reason or "no password supplied" in reason:
        return REJECTED
    if isinstance(error, errors.ConnectionTimeout) and not said:
        # The driver does not tell how far it came.
        return SILENT if _accepts(url) else NOT_ACCEPTED
    words = reason[said.end() :] if said else reason
    return f"cannot be connected to: {words}{_remedy(words, _IT_RUNS if said else '')}"


def _accepts(url: str) -> bool:
    """Tell whether a server accepts a connection, where libpq connects to first."""
    attempt = PGconn.connect_start(url.encode())
    try:
        ends_at = SYSTEM_CLOCK.monotonic() + _SOON
        while attempt.status == ConnStatus.STARTED and (
            readable(
                attempt.socket,
                events=EVENT_WRITE,
                timeout=max(0.0, ends_at - SYSTEM_CLOCK.monotonic()),
            )
        ):
            attempt.connect_poll()
        return attempt.status not in (ConnStatus.STARTED, ConnStatus.BAD)
    finally:
        attempt.finish()


def _unusable(error: psycopg.Error) -> str:
    """Return why a connection is of no use: our statements are not on it, for one."""
    shared = errors.DuplicatePreparedStatement, errors.InvalidSqlStatementName
    if isinstance(error, shared):  # with another client
        return _TRANSACTION_MODE
    reason = _reason(error)
    return f"cannot be used: {reason}{_remedy(reason, _IT_RUNS)}"


def _remedy(reason: str, otherwise: str = "") -> str:
    """Return "; " and what to do about what the server says, if that is known."""
    known = (it for sign, it in _REMEDIES.items() if re.search(sign, reason))
    remedy = next(known, otherwise)
    return remedy and f"; {remedy}"


# Sign in what a server that runs says -> what to do.
_REMEDIES = {
    "slots are reserved|too many (clients|connections)|no more connections": (
        "close connections that no process needs, or raise the limit "
        "(max_connections, or CONNECTION LIMIT): it runs"
    ),
    r"pg_hba\.conf": (
        "let our user in with a line of its pg_hba.conf and reload that, or correct "
        "redlock_nodes"
    ),
    "not permitted to log in": "ALTER ROLE … LOGIN, or correct redlock_nodes",
    '^(database|role) ".*" does not exist': "create it, or correct redlock_nodes",
    "permission denied for database": "GRANT CONNECT on it to our user",
    "starting up|shutting down|in recovery mode|not yet accepting": (
        "wait until it has started: its log says how far it is"
    ),
    "session is read-only|server is in hot standby mode": (
        "start the primary server, or promote a standby: the server that answers is a "
        "standby, or has default_transaction_read_only"
    ),
    "is not (read-only|in hot standby mode)": (
        "write target_session_attrs=read-write in redlock_nodes: locks need the "
        "primary server"
    ),
    "lock timeout": (
        f"another transaction has locked the table {TABLE}, as migrations and VACUUM "
        "FULL do: wait for its end, or end it"
    ),
    "index row size": (
        "use a shorter key, of at most 2,500 bytes here, such as a hash of the text"
    ),
    "row-level security": (
        f"ALTER TABLE {TABLE} DISABLE ROW LEVEL SECURITY, or ALTER ROLE … BYPASSRLS: "
        "locks that a policy hides would be none"
    ),
    "does not support SSL|SSL was required": (
        "switch TLS on there, or correct sslmode in redlock_nodes"
    ),
    "certificate for .* does not match host name": (
        "write a host that is in its certificate into redlock_nodes"
    ),
    "certificate verify failed": (
        "its certificate has expired, or sslrootcert in redlock_nodes does not name "
        "the file of its authority"
    ),
    "root certificate file": (
        "correct sslrootcert in redlock_nodes: it names the file of the authority of "
        "the server"
    ),
    "has group or world access": "",  # it ends with its own remedy
    "client certificate|alert .*(certificate|unknown ca)|private key file": (
        "correct sslcert and sslkey in redlock_nodes: they name the files of a valid "
        "certificate of this client, and of its key"
    ),
    "invalid .* value|invalid connection option": "correct it in redlock_nodes",
    "resolve host|translate host name": (
        "correct its host in redlock_nodes, or check the name service"
    ),
}
_POOLER = (
    "look whether it hangs. A pooler in front of it may be paused: RESUME it. Or it "
    "has no connection left: make its pool larger (default_pool_size) than twice the "
    "number of processes"
)
_IT_RUNS = "it runs, and says so itself: look into its log"


def _reason(error: Exception) -> str:
    """Return the first line of what the server or the driver says."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
