"""Start and check a deployment: what is done to all nodes at once, by people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import new_base, new_token
from celery_redlock.core.question import by_everyone
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.address import NodeAddress
    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.commands import Commands
    from celery_redlock.core.fanout import Transport
    from celery_redlock.core.guard import Guard

__all__ = ["NodesReport", "check", "count_locks", "initialize"]

_SCAN_STEP = 1000


@dataclass(frozen=True, slots=True)
class NodesReport:
    """How the nodes would vote at the moment.

    Attributes:
        ballot: What each of them said.
    """

    ballot: Ballot

    @property
    def problems(self) -> list[str]:
        """What keeps nodes from voting, a clause per node; [] when all vote."""
        return self.ballot.problems()

    @property
    def has_quorum(self) -> bool:
        """Whether a lock could be granted now."""
        return self.ballot.granted >= self.ballot.quorum

    @property
    def waits(self) -> float | None:
        """Seconds until quarantined nodes make up a quorum; None if they won't."""
        wait_ms = self.ballot.quarantine_ms()
        return None if wait_ms is None else wait_ms / 1000


def check(
    guard: Guard, commands: Commands, transport: Transport, ttl: float
) -> NodesReport:
    """Ask every node for a vote that locks nothing anybody wants, and report.

    A node that must go into quarantine goes now and not with the first task.
    """
    base = new_base()
    key, token = f"check:{base}", new_token(base)
    question = commands.acquire(key, ttl=ttl, token=token, facts="", settle=by_everyone)
    transport.ask(question)
    transport.send(commands.release(key, token))
    guard.recover(question.ballot)
    return NodesReport(question.ballot)


def count_locks(address: NodeAddress, prefix: str, *, timeout: float) -> int:
    """Count the live locks on one node, in bounded steps.

    Raises:
        RedlockError: It cannot be reached, or refused.
    """
    from redis import ConnectionPool, Redis  # noqa: PLC0415  (import is 60 ms)
    from redis.exceptions import RedisError  # noqa: PLC0415

    connection = address.connection(timeout)
    pool = ConnectionPool(connection_class=lambda **_: connection)
    try:
        with Redis(connection_pool=pool) as client:
            pattern = f"{prefix}:lock:*"
            return sum(1 for _ in client.scan_iter(pattern, count=_SCAN_STEP))
    except RedisError as error:
        raise RedlockError(
            f"Node {address.name} could not be looked at: {error}. Nothing was "
            "changed; start it, or take it off the list of nodes."
        ) from None
    finally:
        connection.disconnect()


def initialize(guard: Guard, addresses: Sequence[NodeAddress], timeout: float) -> None:
    """Let the nodes of a brand-new deployment vote at once.

    Args:
        guard: Of the deployment.
        addresses: Its nodes; all of them must be up.
        timeout: Seconds that a node may take to answer.

    Raises:
        RedlockError: A node cannot be reached, or holds live locks, which shows
            that the deployment is not new. Nothing was changed.
    """
    for address in addresses:
        locks = count_locks(address, guard.prefix, timeout=timeout)
        if locks:
            raise RedlockError(
                f"Node {address.name} holds live locks under {guard.prefix!r} "
                f"({locks} of them), so this deployment is not new. Nothing was "
                "changed. Let the restart guard admit the nodes by itself, or stop "
                "all workers and wait for one max_ttl."
            )
    ballot = guard.initialize()
    failed = len(addresses) - len(ballot.indexes(VoteKind.GRANTED))
    if failed:
        raise RedlockError(
            f"{failed} of {len(addresses)} nodes could not be initialized: "
            f"{ballot.reasons()}. The others were; run it again."
        )
