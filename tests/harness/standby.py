"""A PostgreSQL whose commits wait for a standby that never comes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from tests.harness.waiting import until

_WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_COMMITS = "SELECT pg_logical_emit_message(true, 'a message', '')"

Connection = psycopg.Connection[Any]


def hold_commits(server: Connection) -> None:
    """Have commits that wait for the disk wait for the standby, too.

    A process of the server decides for all others whether they wait, and may have read
    the setting later than the one that shows it. So a commit is tried until it waits.
    """
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    server.execute("SELECT pg_reload_conf()")
    with (
        psycopg.connect(server.info.dsn, autocommit=True) as probe,
        ThreadPoolExecutor(1) as pool,
    ):
        probe.execute("SET synchronous_commit = on")
        pid = probe.info.backend_pid

        def is_held() -> bool:
            commit = pool.submit(probe.execute, _COMMITS)
            until(lambda: commit.done() or pid in held_commits(server))
            if commit.done():
                return False
            server.execute("SELECT pg_cancel_backend(%s)", (pid,))
            commit.result()  # it is done, and was not waited for
            return True

        until(is_held, what="a commit that waits for the standby")


def let_commits_go(server: Connection) -> None:
    """Have no commit wait for the standby any more."""
    server.execute("ALTER SYSTEM RESET synchronous_standby_names")
    server.execute("SELECT pg_reload_conf()")


def held_commits(server: Connection) -> set[int]:
    """Return the processes of the sessions that wait for the standby."""
    return {pid for (pid,) in server.execute(_WAITS)}
