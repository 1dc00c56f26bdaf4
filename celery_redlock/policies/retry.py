"""``retry``: a call returns to its queue, and tries for its lock later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.timing import seconds_of, seconds_text
from celery_redlock.policies.base import (
    Conflict,
    ConflictDecision,
    Duration,
    LossDecision,
    OptionChecks,
    Outage,
    OutageDecision,
    RefusedCall,
    Situation,
    TaskOptions,
    WorkerCall,
    in_seconds,
    policy,
)

if TYPE_CHECKING:
    from celery_redlock.line.backlog import Place

_FIRST, _LONGEST = 1.0, 30.0  # seconds until the next try in an outage
_MOMENT = 0.5  # seconds
_LEAST = 0.05  # seconds; each way through the broker costs something
_NEXT = 8  # calls for each permit that may wait in their processes
_IN_A_BACKLOG = 60.0  # seconds; calls before it may be gone, and no node tells it
_FOR_A_START = 900.0  # the same where starts are limited: their instants are known


@policy
@dataclass(frozen=True, slots=True)
class Retry(ConflictDecision, LossDecision, OutageDecision):
    """Republish the call; ``max_retries`` does not count it.

    It may run after ``countdown`` seconds; ``None``: the task's ``retry_countdown``.
    If its turn may come soon, the call first waits for ``patience`` seconds in its
    worker process; ``None``: half a second. So short runs follow each other without a
    way through the broker. It may come soon if the running call began less than half a
    second ago; in a backlog, if its turn is due within the patience.
    """

    name: ClassVar[str] = "retry"
    reads: ClassVar[OptionChecks] = {"retry_countdown": seconds_of}
    needs_queue: ClassVar[bool] = True
    needs_arguments: ClassVar[bool] = True

    countdown: Duration = None
    patience: Duration = None

    def __post_init__(self) -> None:
        self._read_seconds("countdown")
        self._read_seconds("patience", zero=True)

    @classmethod
    def answer(cls, situation: Any) -> Retry:
        """Return a retry; after an outage with a countdown of its own.

        The countdown begins with 1 s and doubles with each republishing, up to 30 s.
        So a call runs soon after the nodes vote again, also after a quarantine that
        ``init`` has ended early. It is random, because calls that fail together in an
        outage must not return together. Where nodes said when they vote, that is the
        longest countdown.
        """
        if not isinstance(situation, Outage):
            return cls()
        seconds = jittered(doubled(_FIRST, situation.deferrals, _LONGEST), 0.25)
        if situation.retry_after:
            seconds = min(seconds, jittered(situation.retry_after, 1.0, 1.2))
        return cls(seconds)

    def fill(self, situation: Situation, options: TaskOptions) -> Retry:
        """Return the retry with a countdown, drawn anew for each answer.

        In a cool-down the call runs after its end, and from a backlog in its turn; else
        after half a ttl on average.
        """
        countdown: Duration = self.countdown
        if countdown is None:
            countdown = options.retry_countdown
        turn = None
        if countdown is None:
            if after := Retry.after_cool_down(situation):
                return after
            if isinstance(situation, Conflict) and situation.phase == "queued":
                # In order, others are before it. Its worker looks whether its turn has
                # come, and this countdown is for where the worker cannot.
                longest = _ttl_of(options) / 2
                pause = doubled(_FIRST, situation.deferrals, longest)
                return Retry(jittered(pause, 0.25))
            countdown = jittered(_ttl_of(options), 0.25, 0.75)
            if isinstance(situation, Conflict) and situation.place:
                turn = _turn(situation, situation.place)
                countdown = _countdown(turn, situation, situation.place, countdown)
        patience = _MOMENT if self.patience is None else in_seconds(self.patience)
        soon = _is_soon(situation, turn, patience)
        return Retry(countdown, patience if soon else None)

    @classmethod
    def after_cool_down(cls, situation: Any) -> Retry | None:
        """Return a retry for the end of the cool-down; ``None`` if there is none.

        Calls that met the same cool-down do not all return at its very end.
        """
        if getattr(situation, "phase", "") == "succeeded" and situation.retry_after:
            return cls(jittered(situation.retry_after, 1.0, 1.1))
        return None

    def keeps_trying(self, situation: Situation) -> bool:  # noqa: ARG002  (its base's)
        """Tell whether the call first waits in its worker process."""
        return bool(self.patience)

    def describe(self, situation: Situation) -> str:
        """Return what happens to the call."""
        what = (
            f"be republished, to run after {seconds_text(in_seconds(self.countdown))}"
        )
        if self.patience:
            what = f"wait for at most {seconds_text(in_seconds(self.patience))}"
        place = situation.place if isinstance(situation, Conflict) else None
        if place is None:
            return what
        return f"{what} ({place.before} of {place.waiting} that wait are before it)"

    def perform(self, call: WorkerCall) -> Any:
        """Wait in the worker process first, if that is due; else republish the call."""
        if self.patience:
            return cast("RefusedCall", call).wait(in_seconds(self.patience))
        return call.republish(in_seconds(self.countdown))


def _ttl_of(options: TaskOptions) -> float:
    assert options.ttl is not None  # noqa: S101  (`fill` gets them with that of the app)
    return options.ttl


def _turn(conflict: Conflict, place: Place) -> float:
    """Estimate the seconds until the turn of a call in a backlog.

    It is the time until enough permits have come free, if all runs take as long as
    runs took lately. Where no run has ended yet, they take as long as the one that is
    known has run so far: so the call looks again when that time has doubled.
    """
    limit = conflict.limit
    permits = limit.most if limit else 1
    if limit and limit.period:
        periods, number = divmod(place.before, permits)
        due = conflict.due or (conflict.retry_after or 0.0,)
        return due[min(number, len(due) - 1)] + periods * limit.period
    started = conflict.holder.started if conflict.holder else 0.0
    age = max(0.0, SYSTEM_CLOCK.wall() - started) if started else 0.0
    if not place.run_time:
        return max(age, _MOMENT) * max(1.0, (place.before + 1) / permits)
    if permits > 1:
        return place.run_time * (place.before + 1) / permits
    return max(place.run_time - age, age / 10) + place.before * place.run_time


def _countdown(turn: float, conflict: Conflict, place: Place, usual: float) -> float:
    """Return the countdown of a call whose turn it may be in so many seconds.

    Rather too early than too late: a permit must not be free while all calls wait. So
    the head of the backlog comes back after the usual countdown at the latest, the
    calls behind it after a multiple of that. Who waits for a start comes when it is
    possible, a little apart from the others.
    """
    limit = conflict.limit
    if limit and limit.period:
        apart = min(_MOMENT, limit.period / limit.most / 10)
        return max(_LEAST, min(turn, _FOR_A_START) + jittered(apart, 0.0))
    permits = limit.most if limit else 1
    latest = min(usual * (1 + place.before / permits), _IN_A_BACKLOG)
    return max(_LEAST, jittered(min(turn, latest), 0.95))


def _is_soon(situation: Situation, turn: float | None, patience: float) -> bool:
    """Tell whether the call waits in its process until it is its turn.

    In a backlog these are the first calls alone, a few for each permit: while they
    wait, their processes do nothing else. With fewer, the other processes would refuse
    the whole backlog at once, which takes more processor time than the runs do.
    """
    if not isinstance(situation, Conflict) or situation.waited:
        return False
    place, limit = situation.place, situation.limit
    if place is not None:
        if place.before >= _NEXT * (limit.most if limit else 1):
            return False
        if turn is not None and (place.run_time or (limit and limit.period)):
            return turn <= patience
    return _has_just_begun(situation)


def _has_just_begun(situation: Conflict) -> bool:
    """Tell whether the call that holds the lock may soon end, as short runs do.

    Clocks may differ: that costs one wait of a moment, or one way through the broker.
    """
    if situation.phase != "running" or situation.holder is None:
        return False
    age = SYSTEM_CLOCK.wall() - situation.holder.started
    return -_MOMENT < age < _MOMENT
