"""Check a deployment, and start a new one without waiting for the restart guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.glob import escaped
from celery_redlock.basics.resp import ErrorReply, refusal_of
from celery_redlock.basics.text import number_in
from celery_redlock.basics.timing import duration
from celery_redlock.errors import RedlockError
from celery_redlock.members.view import JOINED, View, is_older, refusal
from celery_redlock.wire.client import NodeUnreachable, each_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.members.restart_guard import RestartGuard
    from celery_redlock.wire.client import NodeClient
    from celery_redlock.wire.quorum import Ballot
    from celery_redlock.wire.url import NodeAddress

_PAUSE = 0.05  # seconds between two tries
_MS, _US = 1000, 1_000_000


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
            locks, which shows that the deployment is not new. So does an epoch that
            clients have founded which knew an earlier one. Nothing was changed.
    """
    check_new(guard, addresses, timeout)
    give_up_at = SYSTEM_CLOCK.monotonic() + timeout
    while True:
        # In each round: a client that starts meanwhile has them wait once more.
        _forget_what_does_not_vote(guard)
        ballot = guard.initialize()
        if ballot.granted == len(addresses):
            return
        if SYSTEM_CLOCK.monotonic() > give_up_at:
            votes = f"Only {ballot.granted} of {len(addresses)} nodes can vote"
            if len(addresses) == 1:
                votes = "The node does not vote"
            raise RedlockError(
                f"{votes}: {ballot.reasons()}. Nodes of a deployment that was "
                "initialized before vote again by themselves: see "
                f"`{COMMAND} doctor`."
            )
        SYSTEM_CLOCK.sleep(_PAUSE)


def check_new(
    guard: RestartGuard, addresses: Sequence[NodeAddress], timeout: float
) -> None:
    """Raise an error where a node shows that its deployment is not new.

    Raises:
        RedlockError: As `initialize` does.
    """
    pattern = escaped(guard.keys.lock("")) + "*"

    def look(client: NodeClient) -> tuple[str, int, bool, float]:
        if client.facts.unfit_because:
            raise NodeUnreachable(client.facts.unfit_because)
        fields = ("config", "votes", "quarantine_until", "used")
        asked = (("HMGET", guard.keys.meta, *fields), ("TIME",))
        found, time = replies = client.ask(*asked)
        for reply in replies:
            if isinstance(reply, ErrorReply):
                raise NodeUnreachable(refusal_of(str(reply)))
        texts = [(it or b"").decode(errors="replace") for it in found]
        config, votes, until, was_used = texts
        now = int(time[0]) + int(time[1]) / _US
        left = 0.0 if votes else number_in(until) / _MS - now
        locks = len({key for keys, _ in client.scan(pattern) for key in keys})
        return config, locks, bool(was_used), left

    nodes = each_node(addresses, look, timeout=timeout)
    for label, reason in nodes.unseen.items():
        raise RedlockError(unusable(label, reason))
    for label, (config, locks, was_used, left) in nodes.results.items():
        view = View.parse(config)
        is_ours = view is not None and view.configuration == guard.configuration
        if not (is_ours or config in ("", JOINED) or is_older(config)):
            difference, remedy = refusal(config, guard.config)
            raise RedlockError(
                f"Node {label} is set up differently, so nothing was changed: "
                f"the nodes {difference}. {remedy}."
            )
        if view is not None and (view.had_others or was_used) and left > 0:
            raise RedlockError(
                "The nodes were in use before they lost their memory, as running "
                f"clients have told node {label}. One may hold a lock from before, so "
                "nothing was changed. Wait: the nodes vote by themselves in "
                f"{duration(left)}."
            )
        if locks:
            raise RedlockError(
                f"Node {label} holds live locks under {guard.keys.prefix!r} "
                f"({locks} of them), so this deployment is not new. Nothing was "
                "changed. Nodes that do not vote yet come to it by themselves. For a "
                "new start, stop all workers, wait for one max_ttl, and run it again."
            )


def unusable(label: str, reason: str) -> str:
    """Return the error text for a node that cannot be read or written at the start.

    Args:
        label: Its name.
        reason: Why; reads on after its name. It may have the remedy, after a ``;``.
    """
    fact, *advice = reason.split("; ", 1)
    remedy = "start or repair it, or remove it from the list of nodes"
    if fact.startswith("grants no lock"):  # it runs
        remedy = f"`{COMMAND} doctor` says what to do"
    remedy = "".join(advice) or remedy
    return (
        f"Node {label} {fact}. It may hold live locks, so nothing was changed. "
        f"{remedy[0].upper()}{remedy[1:]}."
    )


def _forget_what_does_not_vote(guard: RestartGuard) -> None:
    """Let nodes forget a view in which none of them votes.

    And let them forget what older versions stored, also beside nodes that vote: an init
    that was interrupted is run again.
    """
    looks = [look for look in guard.look() if look]
    has_votes = any(look.votes and look.view for look in looks)
    for config in {look.config for look in looks} - {JOINED}:
        if not has_votes or is_older(config):
            guard.look(forget=config)
