"""``release``: take a lock away from its holder; or claims, or cool-downs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.output.format import (
    Column,
    Row,
    duration,
    finite,
    holder_document,
    painted,
    plural,
    table,
    unseen_lines,
)
from celery_redlock.cli.output.session import (
    DONE,
    ERROR,
    WARNING,
    Command,
    Failure,
    Session,
)
from celery_redlock.core.lease import Holder, Inspection
from celery_redlock.operations.force_release import (
    is_ours,
    release_found,
    release_lock,
    values_on,
)
from celery_redlock.operations.scan import Kind, Scan, scan

if TYPE_CHECKING:
    from celery_redlock.core.transport.client import PerNode

_NOTHING_DONE = "Nothing was done."


@click.command(cls=Command, short_help="Take a lock away from its holder.")
@click.argument("key", required=False)
@click.option("--claims", is_flag=True, help="Release claims of queued jobs instead.")
@click.option("--cool-downs", is_flag=True, help="Release cool-downs instead.")
@click.option("--dry-run", is_flag=True, help="Show what would be released.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def release(  # noqa: PLR0913  (click gives each option by name)
    session: Session,
    *,
    key: str | None,
    claims: bool,
    cool_downs: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Take the lock KEY away from its holder.

    Wait instead, if you can: the lock of a dead holder expires within its ttl. Only
    what is shown is released: if another client acquires the lock meanwhile, it keeps
    the lock. Exits with 1 if there is nothing to release.

    With --claims or --cool-downs, KEY is a pattern and can be omitted: '*'. After
    `celery purge`, the claims of deleted jobs keep their calls from being published. A
    cool-down is what unique_for leaves after a success.
    """
    if claims and cool_downs:
        raise click.UsageError("Use --claims or --cool-downs, not both.")
    if claims or cool_downs:
        kind: Kind = "claim" if claims else "cooldown"
        found = scan(session.redlock, key or "*", kind)
        return _release_found(session, found, key or "*", dry_run=dry_run, yes=yes)
    if key is None:
        raise click.UsageError("Missing argument 'KEY'.")
    return _release_lock(session, key, dry_run=dry_run, yes=yes)


# -- a lock ----------------------------------------------------------------------


def _release_lock(session: Session, key: str, *, dry_run: bool, yes: bool) -> int:
    seen = session.redlock.inspect(key)
    values = values_on(seen.ballot)
    if not values:
        if seen.ballot.answered < seen.ballot.quorum:
            raise Failure(f"Too few nodes answered: {seen.ballot.reasons()}.", ERROR)
        session.tell([f"{key} is not held."], lambda: {"key": key, "released": {}})
        return WARNING
    session.say(*_explanation(seen, values))
    document: dict[str, Any] = {
        "key": key,
        "dry_run": dry_run,
        "holders": [holder_document(Holder.parse(value)) for value in values],
        "released": {},
    }
    if dry_run:
        session.tell([_NOTHING_DONE], lambda: document)
        return DONE
    session.confirm("Release this lock?", yes=yes)
    nodes = release_lock(session.redlock, key, values)
    document["released"] = {
        label: nodes.results.get(label, nodes.unseen.get(label))
        for label in session.redlock.labels
    }
    session.tell(_result(nodes), lambda: document)
    return DONE if any(nodes.results.values()) else WARNING


def _explanation(seen: Inspection, values: dict[str, list[str]]) -> list[str]:
    lines, nodes = [], plural(len(seen.ballot.labels), "node")
    for value, labels in values.items():
        held = f"is held by {Holder.parse(value)}"
        fact = held if is_ours(value) else "has a value of another program"
        lines.append(f"{seen.key} {fact}, on {len(labels)} of {nodes}.")
    if seen.holder:
        left = duration(seen.ttl_left)
        lines.append(f"It expires in {left}, unless its holder renews it.")
    return [
        *lines,
        "",
        painted("If the holder is alive, two can run after the release.", "warning"),
        "The release does not stop a live holder. The holder notices at its next",
        "renewal: if another client has the lock by then, the holder has lost it; if",
        "the lock is free, the holder takes it again.",
        "",
    ]


def _result(nodes: PerNode[bool]) -> list[str]:
    released = sum(nodes.results.values())
    total = plural(len(nodes.results) + len(nodes.unseen), "node")
    lines = [f"Released on {released} of {total}."]
    if not released:
        lines = ["The lock expired or has another holder: nothing was released."]
    if nodes.unseen:
        lines += unseen_lines(nodes.unseen)
        lines.append("Such a node keeps the lock until its ttl has ended.")
    return lines


# -- claims and cool-downs ---------------------------------------------------------

_COLUMNS = (
    Column("KEY", cut="end"),
    Column("TASK", cut="start"),
    Column("ID", cut="end"),
    Column("LEFT", right=True),
    Column("NODES", right=True),
)
_NAMES = {"claim": "claim", "cooldown": "cool-down"}
_EFFECT = {
    "claim": (
        "A job that is still in its queue runs all the same, and a second job of the",
        "same call may be queued beside it.",
    ),
    "cooldown": ("The same calls can be published, and run, at once.",),
}


def _release_found(
    session: Session, seen: Scan, pattern: str, *, dry_run: bool, yes: bool
) -> int:
    nodes, name = len(seen.labels), _NAMES[seen.kind]
    unseen = unseen_lines(seen.unseen)
    if len(seen.unseen) == nodes:
        raise Failure("\n".join(map(click.unstyle, unseen)), ERROR)
    document = {
        "kind": seen.kind,
        "dry_run": dry_run,
        "found": [
            {
                "key": one.key,
                **holder_document(one.holder),
                "left": finite(one.ttl_left),
                "nodes": one.votes,
            }
            for one in seen.found
        ],
        "released": 0,
        "unseen": seen.unseen,
    }
    if not seen.found:
        session.tell([f"There is no {name} for {pattern}.", *unseen], lambda: document)
        return WARNING
    session.say(*_table(seen), "", *_EFFECT[seen.kind], *unseen, "")
    if dry_run:
        session.tell([_NOTHING_DONE], lambda: document)
        return DONE
    session.confirm(f"Release {plural(len(seen.found), name)}?", yes=yes)
    released, unseen_now = release_found(session.redlock, seen)
    document |= {"released": released, "unseen": {**seen.unseen, **unseen_now}}
    lines = [f"Released {plural(released, name)}.", *unseen_lines(unseen_now)]
    if unseen_now:
        lines.append("What such a node still has expires by itself.")
    session.tell(lines, lambda: document)
    return DONE if released else WARNING


def _table(seen: Scan) -> list[str]:
    rows: list[Row] = []
    for one in seen.found:
        left, votes = duration(one.ttl_left), f"{one.votes}/{len(seen.labels)}"
        holder = one.holder
        rows.append([one.key, holder.task or "–", holder.task_id or "–", left, votes])
    return table(_COLUMNS, rows)
