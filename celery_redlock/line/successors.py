"""The successor register: which of the calls of a key and task runs next.

::

    publisher ──► message ──► note (id): each node numbers the call
                                 │
    refused ──► enter ─┬─► no better candidate: the call is republished, and tries
                  ▲    │   again after a while
                  └────┤
                       └─► a better candidate: the call ends, and its result names
    granted ──► start ─┬─► it runs         the call that runs instead
                       └─► a better candidate: the same

Every node numbers the calls in the order in which their publishers tell of them, and
keeps one register per key and task. A candidate is a call that was published and has
not started. With ``keep="latest"`` the one that was published last is the better one,
with ``"first"`` the first. If a majority of the nodes names better candidates, the call
ends. This also holds for a call that finds its lock free. So it does not matter how
many worker processes there are. Every failure leads to a run too many, never to one too
few:

* A candidate is in the broker. Its publisher tells of it when the message is there.
  A node that hears of a call that has started already does not list it again: it
  remembers for a minute which calls have. A call that ends in another way is withdrawn.
* A registered call is still in the broker: Celery acknowledges a job only when it ends.
  So the call comes back. (Without ``acks_late`` Celery gives up the job that a killed
  process was looking at. It is then withdrawn from the register.)
* A node may forget its register, or the register may expire or be on a minority only.
  Then no call ends because of it. A call that comes back enters itself again.
* A call that has started stays registered as running. Calls that come later then know
  that they have been superseded, if they were published when its body began, or were
  entered on a majority of the nodes. If a node does not know that the call runs, the
  lock that the call holds shows it.
* A call of which no node was told (it was sent by name or with a countdown, or it is a
  retry, or the nodes were away) has the time of its first publishing as its number.
* A call that expires (``expires``) supersedes no call that lives longer. A call whose
  result says that it ended without a run (revoked, killed) supersedes no call at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.line import RESEND_FOR
from celery_redlock.scripts import (
    ENTER_SUCCESSOR,
    NOTE_PUBLISHED,
    START_SUCCESSOR,
    WITHDRAW_SUCCESSOR,
)
from celery_redlock.wire.quorum import VoteKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.scripts import Script
    from celery_redlock.wire.requests import ScriptRequest


_MS = 1000


class RegisterReply(NamedTuple):
    """The answer of the nodes to `SuccessorRegister.enter` and ``start``.

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
    """The entry of one call in the register of its key and task.

    Attributes:
        published: When it was first published, in µs since 1970: its number on nodes
            that were not told of it.
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
            _keys(self.redlock, self.key, self.task),
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
        states = [state for task_id, _, _, state, *_ in entries if task_id == by]
        return RegisterReply(by, entered=False, waits="waits" in states)

    def _lives_longer(self, entry: Sequence[str]) -> bool:
        """Tell whether a registered call expires no earlier than this one."""
        try:
            expires = float(entry[1])
        except (IndexError, ValueError):
            return False
        return not expires or bool(self.expires and expires >= self.expires)


def withdraw(redlock: Redlock, key: str, task: str, task_id: str) -> None:
    """Withdraw a call that will not come back from the register. Twice is harmless.

    Does not wait for replies: later requests come after it on each node.
    """
    redlock.nodes.tell(
        WITHDRAW_SUCCESSOR,
        _keys(redlock, key, task),
        [task_id],
        resend_for=RESEND_FOR,
    )


def note_published(  # noqa: PLR0913  (each names one thing)
    redlock: Redlock,
    key: str,
    task: str,
    task_id: str,
    *,
    ttl: float,
    expires: float = 0.0,
    replaces: bool = False,
) -> None:
    """Tell the nodes for a ttl that a call is in the broker. Waits for no replies.

    It must not start after it ``expires``, in seconds since 1970; 0 for never. If it
    ``replaces`` the running call, that is asked to end, as `ask_to_end` does.
    """
    who = f"{task}[{task_id}]" if replaces else ""
    redlock.nodes.tell(
        NOTE_PUBLISHED,
        [*_keys(redlock, key, task), redlock.keys.lock(key)],
        [task_id, f"{expires:.3f}", round(ttl * _MS), who],
    )


def _keys(redlock: Redlock, key: str, task: str) -> list[str]:
    return [redlock.keys.successor(key, task), redlock.keys.order(key, task)]
