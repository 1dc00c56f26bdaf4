"""Check a deployment, and start a new one without waiting for the restart guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.core.quorum import VoteKind
from celery_redlock.core.transport.client import each_node, escaped
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.quorum import Ballot
    from celery_redlock.core.restart_guard import RestartGuard
    from celery_redlock.core.transport.client import NodeClient
    from celery_redlock.core.transport.url import NodeAddress

__all__ = ["NodesReport", "initialize"]


@dataclass(frozen=True, slots=True)
class NodesReport:
    """The votes of the nodes at the moment.

    Attributes:
        ballot: The vote of each node.
    """

    ballot: Ballot

    @property
    def problems(self) -> list[str]:
        """One clause per node that does not vote, with the reason; [] when all vote."""
        return self.ballot.problems()

    @property
    def has_quorum(self) -> bool:
        """Whether a lock could be granted now."""
        return self.ballot.granted >= self.ballot.quorum

    @property
    def retry_after(self) -> float | None:
        """Seconds until quarantined nodes make up a quorum; None if they will not."""
        wait_ms = self.ballot.quarantine_ms()
        return None if wait_ms is None else wait_ms / 1000


def initialize(
    guard: RestartGuard, addresses: Sequence[NodeAddress], timeout: float
) -> None:
    """Let the nodes of a brand-new deployment vote at once.

    Args:
        guard: The deployment's restart guard.
        addresses: Its nodes. All of them must be up.
        timeout: Seconds that a node may take to answer.

    Raises:
        RedlockError: A node cannot be read, or holds live locks, which shows that the
            deployment is not new. Nothing was changed.
    """
    pattern = escaped(guard.keys.lock("")) + "*"

    def count_locks(client: NodeClient) -> int:
        return len({key for keys, _ in client.scan(pattern) for key in keys})

    nodes = each_node(addresses, count_locks, timeout=timeout)
    for label, reason in nodes.unseen.items():
        raise RedlockError(
            f"Node {label} {reason}. It may hold live locks, so nothing was changed. "
            "Start it, or remove it from the list of nodes."
        )
    for label, locks in nodes.results.items():
        if locks:
            raise RedlockError(
                f"Node {label} holds live locks under {guard.keys.prefix!r} "
                f"({locks} of them), so this deployment is not new. Nothing was "
                "changed. Wait until the restart guard admits the nodes by itself, or "
                "stop all workers and wait for one max_ttl."
            )
    ballot = guard.initialize()
    failed = len(addresses) - len(ballot.indexes(VoteKind.GRANTED))
    if failed:
        raise RedlockError(
            f"{failed} of {len(addresses)} nodes could not be initialized: "
            f"{ballot.reasons()}. The other nodes vote now. Run it again."
        )
