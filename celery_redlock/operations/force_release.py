"""Releases locks, claims and cool-downs by force, because an operator decided to.

Only what the operator was shown is released: each node compares the value before it
deletes the key. A client that has acquired the lock meanwhile keeps it.

The release does not stop a live holder. The holder notices at its next renewal: if
another client has the lock by then, its lease is lost; if the lock is free, the holder
takes it again.

A claim ends when its job begins, is revoked, or expires. A job that was deleted from
its queue does none of these, so its claim lasts for ``claim_ttl`` unless it is released
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.core.lease import TOKEN_LENGTH, Holder
from celery_redlock.core.quorum import VoteKind
from celery_redlock.core.scripts import GRANTED, RELEASE, RELEASE_CLAIM
from celery_redlock.core.transport.client import BATCH, each_node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_redlock.core.quorum import Ballot
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.transport.client import NodeClient, PerNode
    from celery_redlock.operations.scan import Scan

__all__ = ["is_ours", "release_found", "release_lock", "values_on"]


def values_on(ballot: Ballot) -> dict[str, list[str]]:
    """Return each value of a lock with the nodes that have it, most nodes first.

    Values of one holder differ in the fence alone. They count as one value: the one
    with the greatest fence.

    Args:
        ballot: The answers of the nodes to ``Redlock.inspect``.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for index in ballot.indexes(VoteKind.TAKEN):
        vote = ballot.votes[index]
        value = vote.value if vote else ""
        holder = value.partition("\n")[0] if is_ours(value) else value
        known, nodes = found.get(holder, (value, []))
        greatest = max(known, value, key=lambda one: Holder.parse(one).fence)
        found[holder] = greatest, [*nodes, ballot.labels[index]]
    return dict(sorted(found.values(), key=lambda item: -len(item[1])))


def is_ours(value: str) -> bool:
    """Tell whether celery-redlock wrote this value of a lock."""
    token = value.partition("\n")[0]
    return len(token) == TOKEN_LENGTH and "." in token


def release_lock(redlock: Redlock, key: str, values: Iterable[str]) -> PerNode[bool]:
    """Delete a lock on every node that has one of these values for it.

    Waits for a node for ``connect_timeout`` at most.

    Returns:
        Whether each node had one of the values. An unseen node keeps the lock until its
        ttl has ended.
    """
    proofs = [Holder.parse(v).token if is_ours(v) else v for v in values]
    lock = redlock.keys.lock(key)
    calls = [("EVAL", RELEASE.source, 1, lock, proof, 0) for proof in proofs if proof]
    return each_node(
        redlock.addresses,
        lambda client: 1 in client.ask(*calls),
        timeout=redlock.timing.connect_timeout,
    )


def release_found(redlock: Redlock, found: Scan) -> tuple[int, dict[str, str]]:
    """Delete the claims or cool-downs of a scan on every node that still has them.

    Returns:
        How many of them were still on a node; and why nodes could not be asked, by
        name. On these nodes they stay until their ttl ends.
    """
    name = getattr(redlock.keys, found.kind)
    calls = [
        ("EVAL", RELEASE_CLAIM.source, 1, name(seen.key), seen.holder.token)
        for seen in found.found
    ]

    def visit(client: NodeClient) -> set[int]:
        released = set()
        for start in range(0, len(calls), BATCH):
            replies = client.ask(*calls[start : start + BATCH])
            released |= {
                start + i for i, reply in enumerate(replies) if reply == [GRANTED, 0]
            }
        return released

    timeout = redlock.timing.connect_timeout
    nodes = each_node(redlock.addresses, visit, timeout=timeout)
    return len(set().union(*nodes.results.values())), nodes.unseen
