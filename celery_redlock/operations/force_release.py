"""Releases locks, claims and cool-downs by force, because an operator decided to.

Only what the operator was shown is released: each node compares the value before it
deletes the key. A client that has acquired the lock meanwhile keeps it.

The release does not stop a live holder at once. The holder learns of it at its next
renewal, and has lost its lock then. Until that moment, two can run.

Each release is recorded on all nodes that it reaches: ``records.forced_releases``.

A claim ends when its job begins, is revoked, or expires. A job that was deleted from
its queue does none of these, so its claim lasts for ``claim_ttl`` unless it is released
here.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redlock.basics.text import printable_line
from celery_redlock.locks.forced_release import MOST_FIELD, ForcedRelease
from celery_redlock.locks.lease import Holder
from celery_redlock.records.forced_releases import force_release_words
from celery_redlock.scripts import FORCE_RELEASE, GRANTED, RELEASE_CLAIM
from celery_redlock.wire.client import BATCH, each_node
from celery_redlock.wire.quorum import VoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.scan import Scan
    from celery_redlock.wire.client import NodeClient, PerNode
    from celery_redlock.wire.quorum import Ballot


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator of a release, for its record.

    Attributes:
        who: The name of a user.
        tool: The program: a command, or the Django admin.
        reason: Why the lock is released; ``""`` if the operator does not say.
        host: The machine on which the operator works.
        killed: Whether the holder was killed before.
    """

    who: str
    tool: str
    reason: str = ""
    host: str = field(default_factory=socket.gethostname)
    killed: bool = False

    def __post_init__(self) -> None:
        # A user types them; they are logged, and kept on the nodes for a month.
        for name in ("who", "tool", "reason", "host"):
            text = printable_line(getattr(self, name), MOST_FIELD)
            object.__setattr__(self, name, text)

    @classmethod
    def here(cls, tool: str, reason: str = "", *, killed: bool = False) -> Operator:
        """Return the user of the system who runs this process."""
        try:
            who = getpass.getuser()
        except (KeyError, OSError, ImportError):  # no entry in /etc/passwd, or Windows
            who = f"uid {os.getuid()}" if hasattr(os, "getuid") else ""
        sudo = os.environ.get("SUDO_USER", "")
        who = f"{sudo} (sudo)" if sudo and sudo != who else who
        return cls(who, tool, reason, killed=killed)

    def release(self, key: str, holder: str, *, at: float) -> ForcedRelease:
        """Return the record of a release."""
        return ForcedRelease(
            key=key,
            holder=holder,
            who=self.who,
            host=self.host,
            tool=self.tool,
            reason=self.reason,
            at=at,
            killed=self.killed,
        )


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
    return Holder.parse(value).is_readable


def release_lock(
    redlock: Redlock, key: str, values: Iterable[str], by: Operator
) -> PerNode[bool]:
    """Delete a lock on each node that has one of these values; write a record.

    All keys that were taken together with this one are released, but no permit for a
    start: that ends by itself, or is released by its own name.
    Waits for a node for ``connect_timeout`` at most.

    Args:
        redlock: The lock service.
        key: The name of the lock.
        values: What the operator was shown; see `values_on`.
        by: The operator.

    Returns:
        Whether each node had one of the values. An unseen node keeps the lock until its
        ttl has ended.
    """
    calls = []
    for value in values:
        # A value of another program has no holder that could look for the record.
        holder = Holder.parse(value) if is_ours(value) else None
        whole = holder.whole_key(key) if holder else key
        proof = holder.token if holder else value
        shown = str(holder or "another program")
        record = by.release(whole, shown, at=redlock.clock.wall())
        names, args = force_release_words(redlock.keys, whole, holder, proof, record)
        calls.append((value, names, args))

    def visit(client: NodeClient) -> bool:
        commands = [
            (
                *("EVAL", FORCE_RELEASE.source, len(names), *names),
                _proof(client, names[0], value) or args[0],
                *args[1:],
            )
            for value, names, args in calls
        ]
        return [GRANTED, 0] in client.ask(*commands)

    return each_node(redlock.addresses, visit, timeout=redlock.timing.connect_timeout)


def _proof(client: NodeClient, name: str, value: str) -> bytes:
    """Return the bytes of a value that is no text, and was shown as this one."""
    if "\ufffd" not in value:
        return b""
    (found,) = client.ask(("GET", name))
    is_shown = isinstance(found, bytes) and found.decode(errors="replace") == value
    return found if is_shown else b""


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
