"""``reconfigure``: change the list of nodes, or max_ttl."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.app.runtime import redlock_from, runtime_of
from celery_redlock.basics.secret import SecretUrl, hidden
from celery_redlock.basics.timing import duration
from celery_redlock.cli.output.format import Column, MoodText, Row, table
from celery_redlock.cli.output.ink import painted
from celery_redlock.cli.output.session import ERROR, Command, Failure, Session
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.operations import reconfigure as operation
from celery_redlock.operations.doctor import Workers
from celery_redlock.operations.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.redlock import Redlock

_STANDSTILL = "Until the nodes vote for the new settings, no lock is granted or renewed"
_NOT_MOVED = (
    "Claims, cool-downs, counted starts and backlogs are not moved: calls that",
    "unique_while, unique_for or a rate keeps out now may run again.",
)
_URL = r"(?:[^\s,=/]+=)?\w+://"  # its beginning, which may give it a name


@click.command(cls=Command, short_help="Change the list of nodes, or max_ttl.")
@click.option(
    "--from", "old", metavar="NODES", type=SecretUrl, help="The present nodes."
)
@click.option("--to", "new", metavar="NODES", type=SecretUrl, help="The future nodes.")
@click.option("--from-max-ttl", type=float, help="The present redlock_max_ttl.")
@click.option("--max-ttl", type=float, help="The future redlock_max_ttl.")
@click.option(
    "--gone",
    multiple=True,
    metavar="NODE",
    help="An old node that is switched off for good, by its name. May be repeated.",
)
@click.option("--abort", is_flag=True, help="Take an unfinished change back.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def reconfigure(  # noqa: PLR0913  (an argument for each option)
    session: Session,
    *,
    old: SecretUrl | None,
    new: SecretUrl | None,
    from_max_ttl: float | None,
    max_ttl: float | None,
    gone: tuple[str, ...],
    abort: bool,
    yes: bool,
) -> None:
    """Change the list of nodes, or max_ttl, without two holders.

    The app's settings are the default of each option. NODES are URLs with commas
    between them, name=URL for a node with a name, the URL of one store, or @FILE with
    one per line, which keeps passwords out of the list of processes.

    No lock is granted for about as long as the greater max_ttl. If it is interrupted,
    run it again with the same arguments: it goes on where it stopped. With --abort the
    nodes vote for the old settings again. That needs a majority of the new nodes that
    answer and do not vote for the new settings yet. A node that is switched off for
    good, and is given with --gone, counts as closed: make sure that no client ever
    reaches it again.
    """
    if all(given is None for given in (old, new, from_max_ttl, max_ttl)):
        raise click.UsageError("Say what to change: --from, --to or --max-ttl.")
    before = _redlock(session, old, from_max_ttl)
    after = _redlock(session, new, max_ttl)
    with closing(before), closing(after):
        session.say(*_comparison(before, after, abort=abort))
        ttl, longest = runtime_of(session.app).settings.ttl, after.timing.max_ttl
        if ttl > longest and not abort:
            fact = f"redlock_ttl is {ttl:g} s: lower it to {longest:g} s at most, too."
            session.say(painted(f"{fact} Else no client starts.", "warning"), "")
        if before.labels != after.labels:
            session.say(*_workers(session, before, abort=abort), "")
        question = "Take this change back now?" if abort else "Change it now?"
        session.confirm(question, yes=yes)
        steps = _run(session, before, after, gone=gone, abort=abort)
    removed = [it for it in before.labels if it not in after.labels and not abort]
    lines = ["", "Update all clients now: clients with the old settings get no locks."]
    if abort:
        lines = ["", "The old settings count again."]
    if still_on := [it for it in removed if it not in gone]:
        lines += [
            f"Removed, and without locks from now on: {', '.join(still_on)}.",
            "Shut down those that nothing else uses.",
        ]
    present = before if abort else after
    config = str(present.guard.configuration)
    document = {"config": config, "steps": steps, "gone": removed}
    session.tell(lines, lambda: document)


def _run(
    session: Session,
    before: Redlock,
    after: Redlock,
    *,
    gone: Sequence[str],
    abort: bool,
) -> list[str]:
    """Carry the change out, print each step, and return the steps."""
    steps: list[str] = []

    def on_step(sentence: str) -> None:
        steps.append(sentence)
        session.say(sentence)

    try:
        operation.reconfigure(before, after, abort=abort, gone=gone, on_step=on_step)
    except ConfigurationError:
        raise
    except RedlockError as error:
        raise Failure(str(error), ERROR) from error
    except KeyboardInterrupt:
        other = "" if abort else ", or take it back with --abort"
        raise Failure(
            "Interrupted. If nodes are closed already, no lock is granted until you "
            f"run it again, with the same arguments{other}.",
            ERROR,
        ) from None
    return steps


def _redlock(
    session: Session, nodes: SecretUrl | None, max_ttl: float | None
) -> Redlock:
    settings = runtime_of(session.app).settings
    longest = settings.max_ttl if max_ttl is None else max_ttl
    present = settings.nodes if nodes is None else _nodes_in(nodes)
    ttl = min(settings.ttl, longest)
    return redlock_from(settings, nodes=present, max_ttl=longest, ttl=ttl)


def _nodes_in(given: SecretUrl) -> Sequence[Any]:
    text = given.reveal()
    if text.startswith("@"):
        name = text[1:]
        try:
            text = Path(name).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise ConfigurationError(
                f"{name or '@'} cannot be read ({error.strerror}). Nothing was done."
            ) from None
        except ValueError:  # its text has a part of what may be a password
            raise ConfigurationError(
                f"{name} cannot be read: it is no text in UTF-8. Nothing was done. "
                "Write one node per line."
            ) from None
    if not text.strip():
        raise ConfigurationError("No node is named. Nothing was done.")
    # The URL of a store may name several members with commas between, and libpq's
    # keywords have spaces. So another node begins only where a URL begins.
    nodes: list[SecretUrl | dict[str, SecretUrl]] = []
    for spec in re.split(rf"[,\s]+(?={_URL})", text.strip()):
        name, equals, url = spec.partition("=")
        has_name = bool(equals) and re.match(_URL, spec) and "://" not in name
        node = {"name": name, "url": url} if has_name else spec
        nodes.append(hidden(node))
    return nodes


def _workers(session: Session, present: Redlock, *, abort: bool) -> list[str]:
    """Say which running workers must be updated after the change, or end before."""
    workers = Workers(session.loaded_app)
    these, others = workers.by_nodes(present.labels)
    if workers.silence:
        text = f"No worker could be asked which nodes it uses: {workers.silence}."
        return [painted(text, "warning")]
    if not these and not others:
        return ["No running worker has told which nodes it uses."]
    seen, which = plural(len(these), "running worker"), "old" if abort else "present"
    lines = [f"{seen} with the {which} nodes: {', '.join(these) or 'none'}."]
    if others:
        # They would take new nodes without memory for theirs.
        text = "End the workers with other nodes first" if abort else ""
        text = f"{text or 'Workers with other nodes'}: {', '.join(others)}."
        lines.append(painted(text, "warning"))
    return lines


def _comparison(before: Redlock, after: Redlock, *, abort: bool) -> list[str]:
    changes = (
        MoodText("stays", "faint"),
        MoodText("removed", "warning"),
        MoodText("new", "good"),
    )
    if abort:
        again = MoodText("votes again", "good")
        changes = (again, again, MoodText("is not used", "faint"))
    stays, only_before, only_after = changes
    rows: list[Row] = []
    for label in dict.fromkeys((*before.labels, *after.labels)):
        change = stays if label in after.labels else only_before
        rows.append([label, change if label in before.labels else only_after])
    old_ttl, new_ttl = before.timing.max_ttl, after.timing.max_ttl
    nodes = plural(len(before.labels), "node")
    longest = duration(max(before.timing.quarantine, after.timing.quarantine))
    if abort:
        later = f"at once, or in about {longest} if new nodes have lost their memory"
        summary = [
            f"{nodes} afterwards, and redlock_max_ttl is {old_ttl:g} s: as they were.",
            f"When this change is taken back, locks are granted again {later}.",
        ]
    else:
        later = f", and {new_ttl:g} s afterwards" if old_ttl != new_ttl else ""
        summary = [
            f"{nodes}, {len(after.labels)} afterwards.",
            f"redlock_max_ttl is {old_ttl:g} s{later}.",
            painted(f"{_STANDSTILL}: about {longest}.", "warning"),
            "A task that runs longer than its ttl meanwhile loses its lock.",
        ]
        if len({*after.labels} - {*before.labels}) >= after.quorum:
            summary += [painted(line, "warning") for line in _NOT_MOVED]
    table_lines = table((Column("NODE"), Column("AFTERWARDS")), rows)
    return [*table_lines, "", *summary, ""]
