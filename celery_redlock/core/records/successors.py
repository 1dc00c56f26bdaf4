"""The successor register: which of the refused calls of a key runs next.

::

    refused ──► enter (published, id) ─┬─► no better candidate: the call is republished,
                     ▲                 │   and tries again after a while
                     └── refused again ┤
                                       └─► a better candidate: the call ends, and its
    granted ──► start ─┬─► it runs         result names the call that runs instead
                       └─► a better candidate: the same

Every node keeps one register per key and task. It names one call: the one that was
published last (``keep="latest"``) or first (``"first"``), by the clock of its
publisher. A refused call enters itself. If a majority of the nodes names better
candidates, the call ends. Every failure leads to a run too many, never to one too few:

* A registered call is still in the broker: Celery acknowledges a job only when it ends.
  So the call comes back. (Without ``acks_late`` Celery gives up the job that a killed
  process was looking at. It is then withdrawn from the register.)
* A node may forget its register, or the register may expire or be on a minority only.
  Then no call ends because of it. A call that comes back enters itself again.
* A call that has started stays registered as running. Calls that come back later then
  know that they have been superseded. This holds only for calls that were entered on a
  majority of the nodes before: they were published when its body began. If a node does
  not know that the call runs, the lock that the call holds shows it.
* A call that expires (``expires``) supersedes no call that lives longer. A call whose
  result says that it ended without a run (revoked, killed) supersedes no call at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.core.quorum import VoteKind
from celery_redlock.core.scripts import (
    ENTER_SUCCESSOR,
    START_SUCCESSOR,
    WITHDRAW_SUCCESSOR,
)
from celery_redlock.core.transport.requests import majority_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.scripts import Script
    from celery_redlock.core.transport.requests import ScriptRequest

__all__ = ["RegisterReply", "SuccessorRegister", "withdraw"]

_MS = 1000


class RegisterReply(NamedTuple):
    """The nodes' answer to a call that enters itself or starts.

    Attributes:
        by: The id of the call that supersedes it, as a majority says. None if it
            waits, or runs, itself: also where too few nodes answer.
        entered: Whether a majority has entered it.
        waits: Whether the call ``by`` has not started yet, as far as is known.
    """

    by: str | None
    entered: bool
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorRegister:
    """One call among those that wait for one lock.

    Attributes:
        redlock: The lock service.
        key: The name of the lock.
        task: The name of the task. Calls of other tasks do not supersede it.
        task_id: The id of the call.
        published: When it was first published, in µs since 1970.
        expires: When it must not start any more, in seconds since 1970; 0 for never.
        keep: Which call is the better candidate: ``"latest"`` or ``"first"``.
    """

    redlock: Redlock
    key: str
    task: str
    task_id: str
    published: int
    expires: float
    keep: str

    def enter(
        self, *, ttl: float, entered: bool = False, holder_id: str = ""
    ) -> RegisterReply:
        """Enter the call, unless a better candidate is registered.

        Args:
            ttl: Seconds for which nodes remember this; longer than the call takes to
                come back.
            entered: Whether a majority has entered it before.
            holder_id: The call that holds the lock. It runs, even if nodes forgot that.
        """
        return self._ask(ENTER_SUCCESSOR, ttl, "1" if entered else "", holder_id)

    def start(self, *, ttl: float, entered: bool) -> RegisterReply:
        """Register the call as running, now that it holds the lock; see ``enter``."""
        return self._ask(START_SUCCESSOR, ttl, "1" if entered else "")

    def _ask(self, script: Script, ttl: float, *more: str) -> RegisterReply:
        expires, ttl_ms = f"{self.expires:.3f}", round(ttl * _MS)
        request = self.redlock.nodes.ask(
            script,
            [self.redlock.keys.successor(self.key, self.task)],
            [self.task_id, self.published, self.keep, expires, ttl_ms, *more],
        )
        return self._reply(request)

    def _reply(self, request: ScriptRequest) -> RegisterReply:
        ballot = request.ballot
        entries: list[list[str]] = [
            request.replies[index][1].decode(errors="replace").split("\n")
            for index in ballot.indexes(VoteKind.TAKEN)
        ]
        better = [task_id for task_id, *rest in entries if self._lives_longer(rest)]
        if len(better) < ballot.quorum:
            return RegisterReply(None, ballot.granted >= ballot.quorum)
        if ballot.granted:  # by a few nodes that did not know the other call
            withdraw(self.redlock, self.key, self.task, self.task_id)
        by = max(better, key=better.count)
        states = [state for task_id, *_, state in entries if task_id == by]
        return RegisterReply(by, entered=False, waits="waits" in states)

    def _lives_longer(self, entry: Sequence[str]) -> bool:
        """Tell whether the registered call expires no earlier than this one."""
        try:
            expires = float(entry[1])
        except (IndexError, ValueError):
            return False
        return not expires or bool(self.expires and expires >= self.expires)


def withdraw(redlock: Redlock, key: str, task: str, task_id: str) -> None:
    """Withdraw a call that will not come back from the register. Twice is harmless."""
    redlock.nodes.ask(
        WITHDRAW_SUCCESSOR,
        [redlock.keys.successor(key, task)],
        [task_id],
        done_when=majority_answered,
        resend=True,
    )
