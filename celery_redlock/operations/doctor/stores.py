"""A store in place of the nodes: what it keeps, and what our user may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.operations.doctor.rule import (
    ERROR,
    NOTE,
    WARNING,
    Case,
    Finding,
    as_sentence,
    rule,
)
from celery_redlock.operations.inspect import NodeState
from celery_redlock.operations.words import plural
from celery_redlock.stores.connection import GRANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.inspect import NodeReport

_OLD = 50_000  # transactions: one key that changes all the time is 13 times slower
_QUOTA = 2_147_483_648  # bytes of etcd without --quota-backend-bytes

_PROMOTED = (
    "One that is promoted without being waited for may lack the last grants. Its "
    "timeline is another one, so it grants nothing for {:.0f} s, and its fences are "
    "above its own time."
)


@rule("Node")
def writes(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find servers that do not wait for their disk."""
    if report.status.info.get("fsync") == "off":
        yield Finding(
            "fsync-off",
            ERROR,
            "runs with fsync = off: when its machine crashes, it forgets locks that "
            "it has granted, or its data are damaged",
            "Set fsync = on. It is meant for data that may be lost.",
        )


@rule("Node")
def size(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find an etcd that grows towards its quota."""
    found = int(report.status.info.get("database_bytes") or 0)
    quota = int(report.status.info.get("database_quota") or _QUOTA)
    if found >= quota / 2:
        yield Finding(
            "etcd-size",
            WARNING,
            f"has a database of {found / 1e6:,.1f} MB. At its quota of "
            f"{quota / 1e6:,.0f} MB etcd takes no changes, and all tasks lose their "
            "locks",
            "Let it compact its history (--auto-compaction-mode=periodic), defragment "
            "it, and raise --quota-backend-bytes.",
        )


@rule("Node")
def old_snapshot(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find who keeps a PostgreSQL from deleting dead rows."""
    age = int(report.status.info.get("oldest_snapshot_age") or 0)
    if age >= _OLD:
        holder = report.status.info["oldest_snapshot"]
        yield Finding(
            "old-snapshot",
            WARNING,
            f"keeps the dead rows of {age:,} transactions for the {holder}, and each "
            "change of a key reads its dead rows",
            "End it, or wait for its end: a report or a dump, a session that is idle "
            "in a transaction, a replication slot that nothing reads. A limit is "
            "idle_in_transaction_session_timeout.",
        )


@rule("Node")
def privileges(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find stores that deny our user a needed change."""
    if denied := report.status.info.get("denied"):
        yield Finding("privileges", ERROR, denied, as_sentence(GRANT))


@rule("Node")
def read_only(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find a PostgreSQL that takes no changes."""
    if report.status.state is NodeState.UNFIT and "store" in report.status.info:
        fact, advice = report.status.reason.split("; ", 1)
        yield Finding(
            "read-only", ERROR, f"{fact}: it has no vote", as_sentence(advice)
        )


@rule("Node")
def pooler(report: NodeReport, _: Case) -> Iterator[Finding]:
    """Find a pooler before a PostgreSQL: it may not keep what is ours."""
    if report.status.info.get("pooler") == "yes":
        yield Finding(
            "pooler",
            NOTE,
            "is reached through a pooler",
            "The pooler must be in session mode. In transaction mode, a release wakes "
            "no waiter, and locks are refused as soon as two transactions use "
            "different connections of the server. Or use the server's own address.",
        )


@rule("Node")
def asynchronous_standbys(report: NodeReport, case: Case) -> Iterator[Finding]:
    """Say what the promotion of an asynchronous standby costs."""
    found = report.status.info.get("asynchronous_standbys", "0")
    if found == "unknown":
        yield Finding(
            "async-standbys",
            NOTE,
            "sends its WAL to others, and does not tell our user whether they are "
            "standbys that it waits for",
            "To know it, grant the user pg_read_all_stats. "
            + _PROMOTED.format(case.redlock.timing.quarantine),
        )
    elif count := int(found):
        yield Finding(
            "async-standbys",
            NOTE,
            f"has {plural(count, 'standby')} that it does not wait for",
            _PROMOTED.format(case.redlock.timing.quarantine),
        )
