"""``release``: take a lock away from its holder; or claims, or cool-downs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.output.format import (
    Column,
    Row,
    doubt_lines,
    finite,
    holder_document,
    keys_text,
    table,
    unseen_lines,
)
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import (
    DONE,
    ERROR,
    USAGE,
    WARNING,
    Command,
    Failure,
    Session,
)
from celery_redlock.operations.inspect import lock_holder
from celery_redlock.operations.kill_holder import HolderLives, kill_holder
from celery_redlock.operations.release import (
    OF_OTHERS,
    Operator,
    Question,
    ask,
    release_found,
)
from celery_redlock.operations.release import release as release_confirmed
from celery_redlock.operations.scan import Kind, Scan, scan
from celery_redlock.operations.words import plural, time_left

if TYPE_CHECKING:
    from celery_redlock.locks.lease import Holder

_NOTHING_DONE = "Nothing was done."
_NO_LOCK = (
    "{key} is a permit for a start, and its run may have ended. --kill is for the lock "
    "that a run holds. Nothing was released."
)
_NO_PROCESS = (
    "{key} has a value of another program, which --kill cannot end. Nothing was "
    "released."
)
_WIDTH = 80
_MOODS = {"success": "", "warning": "warning", "error": "bad"}


@click.command(cls=Command, short_help="Take a lock away from its holder.")
@click.argument("key", required=False)
@click.option("--claims", is_flag=True, help="Release claims of queued jobs instead.")
@click.option("--cool-downs", is_flag=True, help="Release cool-downs instead.")
@click.option("--reason", default="", help="Why, for those who look at it later.")
@click.option("--kill", is_flag=True, help="Kill the holder first (prefork workers).")
@click.option("--dry-run", is_flag=True, help="Show what would be released.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def release(  # noqa: PLR0913  (click gives each option by name)
    session: Session,
    *,
    key: str | None,
    claims: bool,
    cool_downs: bool,
    reason: str,
    kill: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Take the lock KEY away from its holder.

    Of a key with a limit, KEY is one permit: 'imports' is the first, then 'imports##2'.
    A permit for a start (rate), such as 'mail@@2', is kept for its period after the
    start. Its release lets another run start before the period has passed.

    Wait instead, if you can: the lock of a dead holder expires within its ttl. Only
    what is shown is released: if another client acquires the lock meanwhile, it keeps
    the lock. Exits with 1 if there is nothing to release, and with 3 if the lock may
    still be held on nodes that were not reached.

    A live holder learns of the release at its next renewal: its lock is lost, its log
    says who released it and why, and on_lock_lost decides about the body. Until then
    two can run. With --kill, the process that runs the task is killed first, and
    nothing is released if that fails. This needs a prefork worker that answers: threads
    and greenlets cannot be killed.

    The nodes keep a record of each release: who, when, from where, why. `show` lists
    them.

    With --claims or --cool-downs, KEY is a pattern and can be omitted: '*'. After
    `celery purge`, the claims of deleted jobs keep their calls from being published. A
    cool-down is what unique_for leaves after a success.
    """
    if claims and cool_downs:
        raise click.UsageError("Use --claims or --cool-downs, not both.")
    if (claims or cool_downs) and (reason or kill):
        raise click.UsageError("--reason and --kill are for locks.")
    if claims or cool_downs:
        kind: Kind = "claim" if claims else "cooldown"
        found = scan(session.redlock, key or "*", kind)
        return _release_found(session, found, key or "*", dry_run=dry_run, yes=yes)
    if key is None:
        raise click.UsageError("Missing argument 'KEY'.")
    return _release_lock(session, key, reason, kill=kill, dry_run=dry_run, yes=yes)


# -- a lock ----------------------------------------------------------------------


def _release_lock(  # noqa: PLR0913  (the options of the command)
    session: Session, key: str, reason: str, *, kill: bool, dry_run: bool, yes: bool
) -> int:
    redlock = session.redlock
    asked = ask(redlock, key)
    found = asked.found
    document: dict[str, Any] = {
        "key": key,
        "held": found.is_held,
        "dry_run": dry_run,
        "holders": [holder_document(lock_holder(value)) for value in asked.values],
        "other_permits": [seen.key for seen in asked.other_permits],
        "doubts": found.doubts,
        "settings": found.nodes.settings or None,
        "released": {},
    }
    if not asked.values:
        fact = f"{key} is not held."
        if found.is_held is None:
            fact = f"It cannot be told whether {key} is held."
        lines = [fact, *asked.facts, *doubt_lines(found.doubts, found.nodes.settings)]
        session.tell(lines, lambda: document)
        return WARNING if found.is_held is False else ERROR
    if asked.is_of_others:
        raise Failure(OF_OTHERS.format(settings=found.nodes.settings), ERROR)
    if kill and asked.is_kept:
        raise Failure(_NO_LOCK.format(key=key), USAGE)
    if kill and len(asked.holders) < len(asked.values):
        raise Failure(_NO_PROCESS.format(key=key), USAGE)
    session.say(*_explanation(asked, kill=kill))
    if dry_run:
        session.tell([_NOTHING_DONE], lambda: document)
        return ERROR if found.is_held is None else DONE
    if kill:
        session.confirm("Kill the holder, and release this lock?", yes=yes)
        document["killed"] = _kill(session, asked.holders)
    else:
        what = "permit for a start" if asked.is_kept else "lock"
        session.confirm(f"Release this {what}?", yes=yes)
    tool = f"celery redlock release{' --kill' if kill else ''}"
    operator = Operator.here(tool, reason, killed=kill)
    done = release_confirmed(redlock, asked, asked.values, operator)
    nodes = done.nodes
    document["released"] = {
        label: nodes.results.get(label, nodes.unseen.get(label))
        for label in redlock.labels
    }
    is_gone = (kill or done.number) and not done.may_be_held
    document["held"] = False if is_gone else None
    lines = [painted(text, _MOODS[level]) for level, text in done.messages]
    session.tell(lines, lambda: document)
    if done.may_be_held:
        return ERROR
    return DONE if kill or done.number else WARNING


def _kill(session: Session, holders: list[Holder]) -> list[str]:
    """Kill the processes of these holders; return what was done, a line for each."""
    done: list[str] = []
    try:
        for holder in holders:
            end = kill_holder(session.app, holder)
            done.append(end)
    except HolderLives as error:
        said = " ".join([*done, str(error), "Nothing was released."])
        raise Failure(said) from error
    session.say(*done)
    return done


def _explanation(asked: Question, *, kill: bool) -> list[str]:
    fact, why = asked.risk
    if kill:
        fact = "The process that runs the task is killed."
        why = (
            "Its task does not run again: Celery revokes it. If the process cannot be "
            "killed, nothing is released."
        )
    elif asked.holders and not asked.is_kept:
        why += " --kill ends the holder first."
    lines = [*asked.holder_lines(), *asked.facts, *doubt_lines(asked.found.doubts)]
    return [*lines, "", painted(fact, "warning"), *textwrap.wrap(why, _WIDTH), ""]


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
    name, unseen = _NAMES[seen.kind], unseen_lines(seen.nodes.silent)
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
        "unseen": seen.nodes.silent,
        "doubts": seen.nodes.doubts,
        "settings": seen.nodes.settings or None,
        "known": seen.nodes.most_can_tell,
    }
    if not seen.found:
        lines = [f"There is no {name} for {pattern}.", *unseen]
        if not seen.nodes.most_can_tell:
            lines[0] = f"It cannot be told whether there is a {name} for {pattern}."
            lines[1:] = doubt_lines(seen.nodes.doubts, seen.nodes.settings)
        session.tell(lines, lambda: document)
        return WARNING if seen.nodes.most_can_tell else ERROR
    if not seen.nodes.most_can_tell:
        unseen = doubt_lines(seen.nodes.doubts, seen.nodes.settings)
        unseen.insert(0, "It cannot be told whether there are more.")
    session.say(*_table(seen), "", *_EFFECT[seen.kind], *unseen, "")
    if dry_run:
        session.tell([_NOTHING_DONE], lambda: document)
        return DONE if seen.nodes.most_can_tell else ERROR
    session.confirm(f"Release {plural(len(seen.found), name)}?", yes=yes)
    released, unseen_now = release_found(session.redlock, seen)
    document |= {"released": released, "unseen": {**seen.nodes.silent, **unseen_now}}
    lines = [f"Released {plural(released, name)}.", *unseen_lines(unseen_now)]
    if unseen_now:
        lines.append("What such a node still has expires by itself.")
    session.tell(lines, lambda: document)
    if len(unseen_now) >= seen.nodes.quorum:
        return ERROR
    return DONE if released else WARNING


def _table(seen: Scan) -> list[str]:
    rows: list[Row] = []
    for one in seen.found:
        left, votes = time_left(one.ttl_left), f"{one.votes}/{len(seen.nodes)}"
        holder = one.holder
        key, task, job = keys_text(one.key), holder.task or "–", holder.task_id or "–"
        rows.append([key, task, job, left, votes])
    return table(_COLUMNS, rows)
