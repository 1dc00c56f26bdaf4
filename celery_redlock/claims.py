"""Reserve a call before a job is sent for it; cool down after one has succeeded.

A *job* is one message, by its task id. A *claim* says which job of a call waits in
the queue, so that no second one is put there::

    publisher   claim (10 s) ──► send the message ──► keep (claim_ttl)
                  │ another job is here                   │
                  ▼                                       ▼
               on_conflict                worker   begins, or will never begin ──► free

    no message was sent: free        the publisher died in between: ends in 10 s

A claim belongs to its job and to nobody else: it is compared before it is kept or
given back, and a copy of the job that is put back into the queue takes it again. The
job that *runs* needs none, since its lock shows it; the job that *has succeeded* is
noted for the time of the cool-down, before its lock is given back.

Claims deduplicate what waits; they are no mutual exclusion, and best effort. They ask
one round trip, and where no majority can tell, the message is sent without. A claim
that ended while its job waited, or that a node forgot, lets one more job be sent; a
job needs no claim to run, since the lock decides. And whoever was given a job whose
publisher then failed to send it was given one that never comes: that publisher has
been told so by an error, nobody else is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.core.ballot import Verdict
from celery_redlock.core.failure import delay_after, failure_of, ttl_left
from celery_redlock.core.lease import Holder
from celery_redlock.core.question import Question, verdict_certain
from celery_redlock.core.scripts import (
    CLAIM,
    COOL_DOWN,
    FREE_CLAIM,
    INSPECT,
    KEEP_CLAIM,
)
from celery_redlock.errors import LockContended, LockHeld

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.scripts import Script

__all__ = ["PENDING", "Claims", "JobHere"]

PENDING = 10.0  # seconds of a claim whose message is on its way
_TRIES = 5  # while votes are split
_MS = 1000
_PHASES = {"queued": "waits in the queue", "succeeded": "has succeeded just before"}
_PHASE_LINE = 7  # of a value; in that of a lock it is none of these


@dataclass(frozen=True, slots=True)
class JobHere:
    """Another job of the same call, as a majority of the nodes names it.

    Attributes:
        key: The call.
        holder: The job, by ``task_id``; for one that waits, who published it.
        phase: ``"queued"``, ``"running"`` or ``"succeeded"``.
        left: Seconds until this ends by itself: the claim, the lock if it is not
            renewed, or the cool-down.
        ballot: What each node said.
    """

    key: str
    holder: Holder
    phase: str
    left: float
    ballot: Ballot

    @classmethod
    def named_in(cls, key: str, ballot: Ballot) -> JobHere:
        """Read it from a ballot that ended as held."""
        token = ballot.top_taker[0]
        named = [v.value for v in ballot.votes if v is not None and v.token == token]
        # While a job begins, some nodes still say that it waits.
        (value, _), *_ = Counter(map(_without_number, named)).most_common(1)
        said = value.split("\n")[_PHASE_LINE:][:1]
        phase = said[0] if said and said[0] in _PHASES else "running"
        return cls(key, Holder.parse(value), phase, ttl_left(ballot, token), ballot)

    def error(self) -> LockHeld:
        """Return it as the reason why something is refused."""
        return LockHeld(
            str(self),
            key=self.key,
            holder=self.holder,
            ballot=self.ballot,
            retry_after=self.left,
        )

    def __str__(self) -> str:
        holder = self.holder
        job, votes = f"{holder.task}[{holder.task_id}]", self.ballot.top_taker[1]
        does = _PHASES.get(self.phase, f"runs on {holder.host} (pid {holder.pid})")
        return (
            f"{job}, the same call {self.key!r}, {does}, as {votes} of "
            f"{len(self.ballot.labels)} nodes say, for {self.left:.1f} s more at most."
        )


class Claims:
    """The claims and cool-downs on the nodes of one deployment.

    Args:
        redlock: The lock service.
    """

    def __init__(self, redlock: Redlock) -> None:
        self._redlock = redlock

    # -- for publishers ----------------------------------------------------------

    def take(
        self, key: str, job: Holder, *, at_lock: bool, at_cooldown: bool
    ) -> JobHere | None:
        """Claim a call for a job that is about to be sent: one round trip.

        Where votes are split, because two publish at once, it is tried again.

        Args:
            key: The call.
            job: Its ``task_id`` is the job; the rest is for people.
            at_lock: A job that runs is in the way, too.
            at_cooldown: One that has succeeded, too.

        Returns:
            The job that is here already; None if the call was claimed, and is for
            ``PENDING`` seconds.

        Raises:
            LockContended: The votes were split, again and again.
            QuorumUnreachable: Too few nodes answered. After each of them nothing
                is claimed.
        """
        redlock, clock = self._redlock, self._redlock.clock
        for tries in range(1, _TRIES + 1):
            began = clock.monotonic()
            question = self._claim(
                key, job, PENDING, at_lock=at_lock, at_cooldown=at_cooldown
            )
            redlock.transport.ask(question)
            ballot = question.ballot
            verdict = ballot.final_verdict()
            if verdict is Verdict.WON:
                return None
            if ballot.granted or ballot.answered < len(ballot.labels):
                self.free(key, job.task_id)
            if verdict is Verdict.HELD:
                return JobHere.named_in(key, ballot)
            failure = failure_of(key, ballot, node_timeout=redlock.timing.node_timeout)
            if tries == _TRIES or not isinstance(failure, LockContended):
                break
            took = clock.monotonic() - began
            clock.sleep(delay_after(failure, tries, ttl=1.0, took=took))
        raise failure

    def retake(self, key: str, job: Holder, seconds: float) -> None:
        """Claim the call for a job that goes back into its queue, if it is free.

        Nobody waits for the answer: the job goes back in any case.
        """
        self._tell(self._claim(key, job, seconds, at_lock=False, at_cooldown=False))

    def keep(self, key: str, task_id: str, seconds: float) -> None:
        """Let the claim last, now that the message has been sent.

        Nobody waits for the answer, and a claim that was freed stays free.
        """
        self._tell(
            self._about(
                KEEP_CLAIM, [self.claim_key(key)], [task_id, round(seconds * _MS)]
            )
        )

    def free(self, key: str, task_id: str) -> None:
        """Give the claim of a job back, where it has one. Twice is harmless.

        Nobody waits for the answer. A node that is away is told when it is back.
        """
        until = self._redlock.clock.monotonic() + self._redlock.timing.max_ttl
        self._tell(
            self._about(
                FREE_CLAIM, [self.claim_key(key)], [task_id], insist_until=until
            )
        )

    # -- for workers -----------------------------------------------------------------

    def cool_down(self, key: str, job: Holder, seconds: float) -> None:
        """Note that a job has succeeded. Call it before its lock is given back.

        Nobody waits for the answer; what is sent next comes after it on each node.
        """
        self._tell(
            self._about(
                COOL_DOWN,
                [self._key("cooldown", key)],
                [job.task_id, f"{job.facts()}\nsucceeded", round(seconds * _MS)],
            )
        )

    def cooling(self, key: str, task_id: str) -> JobHere | None:
        """Return the other job whose cool-down lasts, if a majority names one."""
        here = self._look("cooldown", key)
        return here if here and here.holder.task_id != task_id else None

    def waiting(self, key: str) -> JobHere | None:
        """Return the job that has the claim, if a majority names one."""
        return self._look("claim", key)

    # -- keys and questions -----------------------------------------------------------

    def claim_key(self, key: str) -> str:
        """Return the name of a claim on a node."""
        return self._key("claim", key)

    def _key(self, kind: str, key: str) -> str:
        return f"{self._redlock.guard.prefix}:{kind}:{key}"

    def _claim(
        self,
        key: str,
        job: Holder,
        seconds: float,
        *,
        at_lock: bool,
        at_cooldown: bool,
    ) -> Question:
        facts, ttl_ms = f"{job.facts()}\nqueued", round(seconds * _MS)
        return self._about(
            CLAIM,
            [
                self.claim_key(key),
                self._redlock.commands.lock_key(key),
                self._key("cooldown", key),
            ],
            [job.task_id, facts, ttl_ms, int(at_lock), int(at_cooldown)],
        )

    def _look(self, kind: str, key: str) -> JobHere | None:
        question = self._about(
            INSPECT, [self._key(kind, key)], [], settle=_named_or_hopeless
        )
        self._redlock.transport.ask(question)
        ballot = question.ballot
        return JobHere.named_in(key, ballot) if _is_named(ballot) else None

    def _about(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        settle: Callable[[Ballot], bool] = verdict_certain,
        insist_until: float = 0.0,
    ) -> Question:
        labels = self._redlock.labels
        return Question(
            script, keys, args, labels=labels, settle=settle, insist_until=insist_until
        )

    def _tell(self, question: Question) -> None:
        self._redlock.transport.send(question)


def _without_number(value: str) -> str:
    """Return a value without its second line: nodes have fences of their own."""
    first, *rest = value.split("\n")
    return "\n".join((first, "0", *rest[1:]))


def _is_named(ballot: Ballot) -> bool:
    return ballot.top_taker[1] >= ballot.quorum


def _named_or_hopeless(ballot: Ballot) -> bool:
    """Settle when a majority names one job, or cannot any more."""
    votes = ballot.top_taker[1]
    return votes >= ballot.quorum or votes + ballot.pending < ballot.quorum
