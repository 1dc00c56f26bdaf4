"""``release``: take a lock away from whoever holds it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.cli.session import DONE, ERROR, WARNING, Command, Failure, Session
from celery_redlock.cli.table import duration, painted
from celery_redlock.cli.words import holder_document, plural, unseen_lines
from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import TOKEN_LENGTH, Holder
from celery_redlock.core.probe import NodeSilent, each_node
from celery_redlock.core.scripts import RELEASE

if TYPE_CHECKING:
    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.lease import Inspection
    from celery_redlock.core.redlock import Redlock

__all__ = ["release"]

_MS = 1000


@click.command(cls=Command, short_help="Take a lock away from its holder.")
@click.argument("key")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def release(ctx: click.Context, *, key: str, dry_run: bool, yes: bool) -> None:
    """Take the lock KEY away from its holder.

    Wait instead, if you can: a lock whose holder is gone ends by itself within its
    ttl. What is released is what was shown: should somebody else have taken the lock
    meanwhile, it is left alone. Exits with 1 when there is nothing to release.
    """
    session: Session = ctx.obj
    seen = session.redlock.inspect(key)
    values = _values(seen.ballot)
    if not values:
        if seen.ballot.answered < seen.ballot.quorum:
            raise Failure(f"Too few nodes answered: {seen.ballot.reasons()}.", ERROR)
        session.tell([f"Nobody holds {key}."], {"key": key, "released": {}})
        ctx.exit(WARNING)
    session.say(*_explanation(seen, values))
    released: dict[str, Any] = {}
    lines = ["Nothing was done."]
    if not dry_run:
        session.confirm("Release it?", yes=yes)
        released = _release(session.redlock, key, list(values))
        lines = _outcome(released)
    holders = [holder_document(Holder.parse(value)) for value in values]
    session.tell(
        lines,
        {"key": key, "dry_run": dry_run, "holders": holders, "released": released},
    )
    ctx.exit(DONE if dry_run or True in released.values() else WARNING)


def _values(ballot: Ballot) -> dict[str, list[str]]:
    """Return the nodes that have each value, those of the holder first."""
    nodes = defaultdict(list)
    for index in ballot.indexes(VoteKind.TAKEN):
        vote = ballot.votes[index]
        nodes[vote.value if vote else ""].append(ballot.labels[index])
    return dict(sorted(nodes.items(), key=lambda item: -len(item[1])))


def _explanation(seen: Inspection, values: dict[str, list[str]]) -> list[str]:
    lines = []
    for value, nodes in values.items():
        where = f"on {len(nodes)} of {plural(len(seen.ballot.labels), 'node')}"
        if _is_ours(value):
            lines.append(f"{seen.key} is held by {Holder.parse(value)}, {where}.")
        else:
            lines.append(f"{seen.key} was not written by celery-redlock, {where}.")
    if seen.holder:
        lines.append(
            f"It ends by itself in {duration(seen.ttl_left)}, unless it is renewed."
        )
    return [
        *lines,
        "",
        painted("If its holder is alive, two may run once you release it.", "warning"),
        "A holder that is alive learns of it when it next renews its lock: if somebody",
        "has it by then, it is told that it lost it; if nobody has, it takes it back.",
        "",
    ]


def _is_ours(value: str) -> bool:
    token = value.partition("\n")[0]
    return len(token) == TOKEN_LENGTH and "." in token


def _release(redlock: Redlock, key: str, values: list[str]) -> dict[str, Any]:
    """Run RELEASE on every node for each value; return what each node said."""
    proofs = [Holder.parse(v).token if _is_ours(v) else v for v in values]
    lock = redlock.commands.lock_key(key)
    calls = [("EVAL", RELEASE.source, 1, lock, proof, 0) for proof in proofs if proof]
    said = each_node(
        redlock.addresses,
        lambda probe: 1 in probe.ask(*calls),
        timeout=redlock.timing.connect_timeout,
    )
    return {
        label: str(one) if isinstance(one, NodeSilent) else one
        for label, one in zip(redlock.labels, said, strict=True)
    }


def _outcome(released: dict[str, Any]) -> list[str]:
    done = [label for label, one in released.items() if one is True]
    silent = {label: one for label, one in released.items() if isinstance(one, str)}
    lines = [f"Released on {len(done)} of {plural(len(released), 'node')}."]
    if not done:
        lines = ["It had changed hands or ended meanwhile: nothing was released."]
    if silent:
        lines += [painted(line, "warning") for line in unseen_lines(silent)]
        lines.append("What they have of the lock stays there until its ttl has ended.")
    return lines
