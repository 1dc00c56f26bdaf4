"""Which of the calls that wait for a lock is the next to run: one for all of them.

::

    refused ──► offer (published, id) ──┬─► none stands before it: it goes back into
                     ▲                  │   its queue, and tries again after a while
                     └── refused again ─┤
                                        └─► another one stands before it: it ends, and
    granted ──► take ──┬─► it runs          says which one runs in its stead
                       └─► another one stands before it: the same

Each node has a register for each key and task, which only moves on: to the call
that was published later (``keep="latest"``) or earlier (``"first"``), by the clock
of its publisher. A call ends only when a majority of the nodes names others that
stand before it. Whatever goes wrong makes an extra run, and loses none:

* All that a register names were in their queue when they were entered, and come
  back: a job leaves the broker with its end only. (Without ``acks_late`` Celery
  gives up what a killed process was just looking at. It is struck off then.)
* A register that a node has forgotten, that has ended with its ttl or was written
  on a minority only makes nobody end. Who comes back enters itself anew.
* Who takes its turn stays in the register, as one that runs, for those that come
  back later. It counts for nobody but those who were on a majority of the nodes
  before it took their place: they had been published when its body began. Where a
  node did not hear that it runs, it is known by the lock that it holds.
* One that expires (``expires``) stands for nobody that lives longer, and one whose
  result says that it has ended without its turn (revoked, killed) for nobody at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.question import Question, by_majority, verdict_certain
from celery_redlock.core.scripts import LEAVE_NEXT, OFFER_NEXT, TAKE_NEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.scripts import Script

__all__ = ["Answer", "Turn", "give_up_turn"]

_MS = 1000


class Answer(NamedTuple):
    """What the nodes say to one that waits.

    Attributes:
        by: The id of the call that runs in its stead, as a majority says; None if it
            is to wait, or to run, itself: also where too few nodes answer.
        entered: Whether a majority has entered it.
        waits: Whether that one is to run yet, as far as is known.
    """

    by: str | None
    entered: bool
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The turn of one call among those that wait for one lock.

    Attributes:
        redlock: The lock service.
        key: The name of the lock.
        task: The name of the task: calls of others do not stand for it.
        task_id: The call.
        published: When it was published first, in µs since 1970.
        expires: After when it must not start, in seconds since 1970; 0 for never.
        keep: Who stands before whom: ``"latest"`` or ``"first"``.
    """

    redlock: Redlock
    key: str
    task: str
    task_id: str
    published: int
    expires: float
    keep: str

    def offer(
        self, *, ttl: float, entered: bool = False, holder_id: str = ""
    ) -> Answer:
        """Be the next to run, unless another one that waits stands before it.

        Args:
            ttl: Seconds for which this is remembered; longer than it takes to
                come back.
            entered: Whether a majority has entered it before.
            holder_id: The call that holds the lock: it runs, whatever nodes know.
        """
        return self._ask(OFFER_NEXT, ttl, entered, holder_id)

    def take(self, *, ttl: float, entered: bool) -> Answer:
        """Run, now that it holds the lock; for the arguments see ``offer``."""
        return self._ask(TAKE_NEXT, ttl, entered)

    def _ask(self, script: Script, ttl: float, entered: bool, *more: str) -> Answer:  # noqa: FBT001  (of the two lines above)
        expires, ttl_ms = f"{self.expires:.3f}", round(ttl * _MS)
        order = [self.task_id, self.published, self.keep]
        question = Question(
            script,
            [_register(self.redlock, self.key, self.task)],
            [*order, expires, ttl_ms, "1" if entered else "", *more],
            labels=self.redlock.labels,
            settle=verdict_certain,
        )
        self.redlock.transport.ask(question)
        return self._outcome(question)

    def _outcome(self, question: Question) -> Answer:
        ballot = question.ballot
        entries: list[list[str]] = [
            question.replies[index][1].decode(errors="replace").split("\n")
            for index in ballot.indexes(VoteKind.TAKEN)
        ]
        before = [task_id for task_id, *facts in entries if self._is_outlived(facts)]
        if len(before) < ballot.quorum:
            return Answer(None, ballot.granted >= ballot.quorum)
        if ballot.granted:  # by a few that did not know better
            give_up_turn(self.redlock, self.key, self.task, self.task_id)
        by = max(before, key=before.count)
        waits = [state for task_id, *_, state in entries if task_id == by]
        return Answer(by, entered=False, waits="waits" in waits)

    def _is_outlived(self, facts: Sequence[str]) -> bool:
        """Tell whether one that stands before it lives as long as it does."""
        try:
            expires = float(facts[1])
        except (IndexError, ValueError):
            return False
        return not expires or bool(self.expires and expires >= self.expires)


def give_up_turn(redlock: Redlock, key: str, task: str, task_id: str) -> None:
    """Strike a call off that will not come back. Twice is harmless."""
    redlock.transport.ask(
        Question(
            LEAVE_NEXT,
            [_register(redlock, key, task)],
            [task_id],
            labels=redlock.labels,
            settle=by_majority,
            insist_until=redlock.clock.monotonic() + redlock.timing.max_ttl,
        )
    )


def _register(redlock: Redlock, key: str, task: str) -> str:
    return f"{redlock.guard.prefix}:next:{key}:{task}"
