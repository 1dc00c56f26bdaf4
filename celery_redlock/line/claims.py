"""Claims: reserve a call before its job is published; cool down after a success.

A *job* is one message, by its task id. A *claim* says which job of a call waits in the
queue, so that no second one is published::

    publisher   claim (10 s) ──► send the message ──► keep (claim_ttl)
                  │ another job is here                  │
                  ▼                                      ▼
               on_conflict              worker  begins, or will never begin ──► release

    no message was sent: release     the publisher died in between: ends in 10 s

A claim belongs to its job alone, and the message of the job carries the key that was
claimed. Workers release just this key: a worker of another version may compute another
key for the call, or not know its task. The job is compared before its claim is kept or
released, and a copy of the job that is republished takes it again, if it is the key of
the call. The claim names the run that has republished the job, since a node that was
away may get the release of an earlier run later.

If the result of a job says that it has ended, the next publisher takes over its claim.
A job that *runs* needs no claim, since its lock shows it. A job that *has succeeded* is
noted for the time of the cool-down, before its lock is released.

Claims deduplicate jobs that wait. They are best effort and no mutual exclusion. They
cost one round trip, and if no majority answers, the message is sent without a claim. If
a claim ended while its job waited, or a node forgot it, one more job is sent. A job
needs no claim to run, since the lock decides. One case is known: a publisher is given
the job of another publisher, which then fails to send it. That job never comes, and
only the publisher that failed gets an error.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.errors import LockContended, LockHeld
from celery_redlock.line import RESEND_FOR
from celery_redlock.locks.failure import (
    delay_after,
    ends_in,
    failure_of,
    for_how_long,
    unreachable,
)
from celery_redlock.locks.lease import Holder, together_lines
from celery_redlock.scripts import (
    CLAIM,
    COOL_DOWN,
    INSPECT,
    KEEP_CLAIM,
    RELEASE_CLAIM,
)
from celery_redlock.scripts.keys import keys_of, shown
from celery_redlock.wire.quorum import Verdict
from celery_redlock.wire.requests import all_answered

if TYPE_CHECKING:
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.quorum import Ballot
    from celery_redlock.wire.requests import ScriptRequest


PENDING = 10.0  # seconds of a claim whose message is on its way
_FIRST = "0"  # the run that has sent a job: none, but its publisher
_TRIES = 5  # while votes are split
_MS = 1000
_PHASES = {"queued": "waits in the queue", "succeeded": "has just succeeded"}
_IN_TURN = ("queued", "running", "succeeded")  # the phases of a job
_PHASE_LINE = 7  # of a value; that of a lock has none of these phases there


@dataclass(frozen=True, slots=True)
class ExistingJob:
    """Another job of the same call, as a majority of the nodes names it.

    Attributes:
        key: The key of the call.
        holder: The job, by ``task_id``; host and pid of a queued job are its
            publisher's.
        phase: ``"queued"``, ``"running"`` or ``"succeeded"``.
        left: Seconds until this ends by itself: the claim, the lock if it is not
            renewed, or the cool-down.
        ballot: The votes of the nodes.
    """

    key: str
    holder: Holder
    phase: str
    left: float
    ballot: Ballot

    @classmethod
    def named_in(cls, key: str, ballot: Ballot) -> ExistingJob:
        """Read the job from a ballot whose verdict is *held*."""
        named = [_without_number(vote.value) for vote in ballot.top_votes()]
        # A claim is released, and a cool-down noted, without waiting for the nodes: the
        # one that has the latest word is right.
        latest = max(map(_phase_in, named), key=_IN_TURN.index)
        values = Counter(value for value in named if _phase_in(value) == latest)
        (value, _), *_ = values.most_common(1)
        return cls(key, Holder.parse(value), latest, ends_in(ballot), ballot)

    @property
    def held_key(self) -> str:
        """The key with the claim: the key of the call, or one of its keys."""
        keys = keys_of(self.key)
        is_same_call = self.phase in _PHASES or not keys[1:]
        if is_same_call or list(self.holder.keys) == keys:
            return self.key
        return keys[self.ballot.top_place]

    def error(self) -> LockHeld:
        """Return the `LockHeld` that names the job."""
        return LockHeld(
            str(self),
            key=self.key,
            held_key=self.held_key,
            holder=self.holder,
            ballot=self.ballot,
            retry_after=None if self.left == math.inf else self.left,
        )

    def __str__(self) -> str:
        holder, name = self.holder, str(self.holder)
        votes, nodes = self.ballot.top_taker[1], len(self.ballot.labels)
        what = f"The same call {shown(self.key)} {_PHASES.get(self.phase, 'runs')} as"
        if self.phase in _PHASES:
            name = f"{holder.task}[{holder.task_id}]"
        elif self.held_key != self.key or not holder.task_id:  # no run of this call
            what = f"The key {shown(self.held_key)} is held by"
        source = f", as {votes} of {nodes} nodes say" if nodes > 1 else ""
        until = "at most" if self.phase in _PHASES else "unless renewed"
        return f"{what} {name}, {for_how_long(self.left, until)}{source}."


class Claims:
    """The claims and cool-downs on the nodes of one deployment."""

    def __init__(self, redlock: Redlock) -> None:
        self._redlock = redlock
        self._nodes = redlock.nodes
        self._keys = redlock.keys

    # -- for publishers ----------------------------------------------------------

    def take(
        self, key: str, job: Holder, *, at_lock: bool, at_cooldown: bool
    ) -> ExistingJob | None:
        """Claim a call for a job that is about to be sent: one round trip.

        Where votes are split, because two publish at once, it is tried again.

        Args:
            key: The key of the call.
            job: Its ``task_id`` is the job; the rest is for display.
            at_lock: Whether a running job refuses the claim, too.
            at_cooldown: Whether a cool-down refuses it, too.

        Returns:
            The job that exists already. None if the call was claimed, for
            ``PENDING`` seconds.

        Raises:
            LockContended: The votes were split, again and again.
            QuorumUnreachable: Too few nodes answered, or vote in the view of this
                client.

        After each of these nothing is claimed.
        """
        redlock, clock = self._redlock, self._redlock.clock
        tries = 0
        while True:
            began = clock.monotonic()
            request = self._request(
                key, job, PENDING, at_lock=at_lock, at_cooldown=at_cooldown
            )
            redlock.transport.ask(request)
            ballot = request.ballot
            verdict = ballot.final_verdict()
            if verdict is Verdict.WON:
                return None
            if redlock.guard.recover(ballot):
                continue  # the next claim of this job takes the place of this one
            failure = None
            if verdict is not Verdict.HELD:
                failure = failure_of(key, ballot, config=redlock.guard.config)
            tries += 1
            goes_on = tries < _TRIES and isinstance(failure, LockContended)
            if ballot.granted or ballot.answered < len(ballot.labels):
                # A late release would take the claim of the next try, too.
                seconds = 0.0 if goes_on else PENDING
                name, words = self._keys.claim(key), [job.task_id]
                self._nodes.tell(RELEASE_CLAIM, [name], words, resend_for=seconds)
            if failure is None:
                return ExistingJob.named_in(key, ballot)
            if not goes_on:
                raise failure
            took = clock.monotonic() - began
            clock.sleep(delay_after(failure, tries, ttl=1.0, took=took))

    def retake(
        self, key: str, job: Holder, seconds: float, *, follows: str = ""
    ) -> None:
        """Claim the call for a job that is republished, if no other job has it.

        Does not wait for replies: the job is republished in any case. ``follows`` is
        the run that republishes it, as its header says.
        """
        request = self._request(
            key, job, seconds, at_lock=False, at_cooldown=False, follows=follows
        )
        self._nodes.send(request)

    def keep(self, key: str, task_id: str, seconds: float) -> None:
        """Prolong the claim, now that the message has been sent.

        Does not wait for replies. A claim that was released stays released.
        """
        keys = [self._keys.claim(key), self._keys.meta]
        args = [self._redlock.guard.config, task_id, round(seconds * _MS)]
        self._nodes.tell(KEEP_CLAIM, keys, args)

    def release(
        self, key: str, task_id: str, task: str = "", *, follows: str | None = None
    ) -> None:
        """Release the claim of a job, if it has one. Twice is harmless.

        Does not wait for replies. A node that is away gets it when it reconnects.

        Where a message names key and job, the claim must be of this task: any client of
        the broker can write a message. A message also says which run it ``follows``, ""
        for none: a node that was away keeps the claim that the job has taken for a
        later run. With None it is a claim for any run.
        """
        words = [task_id, task]
        if follows is not None:
            words.append(follows or _FIRST)
        names = [self._keys.claim(key)]
        self._nodes.tell(RELEASE_CLAIM, names, words, resend_for=RESEND_FOR)

    # -- for operators -----------------------------------------------------------

    def release_any(self, key: str) -> str | None:
        """Release the claim of a call, whichever job has it.

        Waits for the nodes. A node that is away gets it when it reconnects.

        Returns:
            The task id of the job that most nodes named; None if none has a claim.

        Raises:
            QuorumUnreachable: Too few nodes answered. The claim is released on the
                others.
        """
        redlock, name = self._redlock, self._keys.claim(key)
        ballot = self._nodes.ask(INSPECT, [name], done_when=all_answered).ballot
        jobs = Counter(v.token for v in ballot.votes if v is not None and v.token)
        for job in jobs:
            self._nodes.ask(
                RELEASE_CLAIM,
                [name],
                [job],
                done_when=all_answered,
                resend_for=RESEND_FOR,
            )
        if ballot.answered < ballot.quorum:
            raise unreachable(
                key,
                ballot,
                config=redlock.guard.config,
                state="A claim was released on the nodes that answered",
            )
        return max(jobs, key=jobs.__getitem__, default=None)

    # -- for workers -----------------------------------------------------------------

    def cool_down(self, key: str, job: Holder, seconds: float) -> None:
        """Note that a job has succeeded. Call it before its lock is released.

        Does not wait for replies: later requests come after it on each node.
        """
        args = [job.task_id, f"{job.info()}\nsucceeded", round(seconds * _MS)]
        self._nodes.tell(COOL_DOWN, [self._keys.cooldown(key)], args)

    def succeeded(self, key: str, task_id: str) -> ExistingJob | None:
        """Return the other job whose cool-down lasts, if a majority names one."""
        job = self._look(key, self._keys.cooldown(key))
        return job if job and job.holder.task_id != task_id else None

    def queued(self, key: str) -> ExistingJob | None:
        """Return the job that has the claim, if a majority names one."""
        return self._look(key, self._keys.claim(key))

    # -- requests --------------------------------------------------------------------

    def _request(  # noqa: PLR0913  (keyword-only)
        self,
        key: str,
        job: Holder,
        seconds: float,
        *,
        at_lock: bool,
        at_cooldown: bool,
        follows: str = "",
    ) -> ScriptRequest:
        holder_info, ttl_ms = f"{job.info()}\nqueued", round(seconds * _MS)
        keys, checks = self._keys, (int(at_lock), int(at_cooldown))
        return self._nodes.request(
            CLAIM,
            # A running job of the same call has all of its keys, so also the first.
            [keys.claim(key), keys.locks(key)[0], keys.cooldown(key), keys.meta],
            [
                self._redlock.guard.config,
                job.task_id,
                holder_info,
                ttl_ms,
                *checks,
                together_lines(key),
                follows or _FIRST,
            ],
        )

    def _look(self, key: str, name: str) -> ExistingJob | None:
        ballot = self._nodes.ask(INSPECT, [name], done_when=_is_decided).ballot
        is_named = ballot.top_taker[1] >= ballot.quorum
        return ExistingJob.named_in(key, ballot) if is_named else None


def _phase_in(value: str) -> str:
    """Return the phase of the job in a stored value."""
    line = value.split("\n")[_PHASE_LINE:][:1]
    return line[0] if line and line[0] in _PHASES else "running"


def _without_number(value: str) -> str:
    """Return a value with 0 in its second line, where each node has its own fence."""
    first, *rest = value.split("\n")
    return "\n".join((first, "0", *rest[1:]))


def _is_decided(ballot: Ballot) -> bool:
    """Tell whether a majority names one job, or none can any more."""
    votes = ballot.top_taker[1]
    return votes >= ballot.quorum or votes + ballot.pending < ballot.quorum
