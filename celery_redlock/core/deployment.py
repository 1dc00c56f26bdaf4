"""Check a deployment, and start a new one without waiting for the restart guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.glob import escaped
from celery_redlock.core.resp import ErrorReply, refusal_of
from celery_redlock.core.transport.client import NodeUnreachable, each_node
from celery_redlock.core.view import JOINED, View, refusal
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.quorum import Ballot
    from celery_redlock.core.restart_guard import RestartGuard
    from celery_redlock.core.transport.client import NodeClient
    from celery_redlock.core.transport.url import NodeAddress

__all__ = ["NodesReport", "initialize"]

_PAUSE = 0.05  # seconds between two tries
_OLDER = ("protocol 1,", "format 2,", "format 3,")  # what older versions stored


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
        RedlockError: A node cannot be read, has another configuration, or holds live
            locks, which shows that the deployment is not new. Nothing was changed.
    """
    pattern = escaped(guard.keys.lock("")) + "*"

    def look(client: NodeClient) -> tuple[str, int]:
        (config,) = client.ask(("HGET", guard.keys.meta, "config"))
        if isinstance(config, ErrorReply):
            raise NodeUnreachable(refusal_of(str(config)))
        locks = len({key for keys, _ in client.scan(pattern) for key in keys})
        return config.decode(errors="replace") if config else "", locks

    nodes = each_node(addresses, look, timeout=timeout)
    for label, reason in nodes.unseen.items():
        raise RedlockError(
            f"Node {label} {reason}. It may hold live locks, so nothing was changed. "
            "Start or repair it, or remove it from the list of nodes."
        )
    for label, (config, locks) in nodes.results.items():
        view = View.parse(config)
        is_ours = view is not None and view.configuration == guard.configuration
        if not (is_ours or config in ("", JOINED) or config.startswith(_OLDER)):
            difference, remedy = refusal(config, guard.config)
            raise RedlockError(
                f"Node {label} belongs to another deployment, so nothing was changed: "
                f"the nodes {difference}. {remedy}."
            )
        if locks:
            raise RedlockError(
                f"Node {label} holds live locks under {guard.keys.prefix!r} "
                f"({locks} of them), so this deployment is not new. Nothing was "
                "changed. Wait until the restart guard admits the nodes by itself, or "
                "stop all workers and wait for one max_ttl."
            )
    give_up_at = SYSTEM_CLOCK.monotonic() + timeout
    while True:
        # In each round: a client that starts meanwhile has them wait once more.
        _forget_what_does_not_vote(guard)
        ballot = guard.initialize()
        if ballot.granted == len(addresses):
            return
        if SYSTEM_CLOCK.monotonic() > give_up_at:
            raise RedlockError(
                f"Only {ballot.granted} of {len(addresses)} nodes vote: "
                f"{ballot.reasons()}. Nodes of a deployment that was initialized "
                "before vote again by themselves: see `celery -A proj redlock doctor`."
            )
        SYSTEM_CLOCK.sleep(_PAUSE)


def _forget_what_does_not_vote(guard: RestartGuard) -> None:
    """Take nodes out of views in which none votes: they wait, for nothing.

    And let them forget what older versions stored, also beside nodes that vote: an init
    that was interrupted is run again.
    """
    looks = [look for look in guard.look() if look]
    has_votes = any(look.votes and look.view for look in looks)
    for config in {look.config for look in looks} - {JOINED}:
        if not has_votes or config.startswith(_OLDER):
            guard.look(forget=config)
