"""Take a lock away from whoever holds it, because a person says so.

What is taken away is what the person was shown: each node compares the value before
it deletes, so that somebody who has got the lock meanwhile keeps it. A holder that
is alive is not stopped by this. It learns of it when it next renews its lock: if
somebody has it by then, it is told that it lost it; if nobody has, it takes it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import TOKEN_LENGTH, Holder
from celery_redlock.core.probe import NodeSilent, each_node
from celery_redlock.core.scripts import RELEASE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.redlock import Redlock

__all__ = ["is_ours", "remove", "values_on"]


def values_on(ballot: Ballot) -> dict[str, list[str]]:
    """Return the nodes that have each value of a lock, those of its holder first.

    Values of one holder differ in the fence alone, if they do: they count as one,
    the one with the greatest fence.

    Args:
        ballot: What nodes said when they were asked who holds it.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for index in ballot.indexes(VoteKind.TAKEN):
        vote = ballot.votes[index]
        value = vote.value if vote else ""
        who = value.partition("\n")[0] if is_ours(value) else value
        known, nodes = found.get(who, (value, []))
        greater = max(known, value, key=lambda one: Holder.parse(one).fence)
        found[who] = greater, [*nodes, ballot.labels[index]]
    return dict(sorted(found.values(), key=lambda item: -len(item[1])))


def is_ours(value: str) -> bool:
    """Tell whether a lock's value was written by this package."""
    token = value.partition("\n")[0]
    return len(token) == TOKEN_LENGTH and "." in token


def remove(redlock: Redlock, key: str, values: Iterable[str]) -> dict[str, bool | str]:
    """Delete a lock on all nodes, wherever it has one of these values.

    Waits for each node for ``connect_timeout`` at most.

    Returns:
        For each node whether it had one of them, or why it could not be asked: what
        such a node has of the lock stays there until its ttl has ended.
    """
    proofs = [Holder.parse(v).token if is_ours(v) else v for v in values]
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
