"""The wrapped scheduler while this beat leads: it sends only what it may.

A class of the project's own scheduler with ``Leading`` in front, made anew for
each term. The scheduler ticks as ever; what it does on the way is gated:

::

    tick ──► is_due ──► reserve ──► apply_entry ──► apply_async ──► note it on
               │           │             │               │          the nodes
               │           └─────────────┴───────────────┤
      the slot was sent by                    less than a tenth of the ttl is
     somebody before: not due               left: nothing is sent, and nothing
                                            raised, which would end beat

Which slots of an entry were sent is what the nodes say (``slots``), and not what
the scheduler remembers: its file may be old, its row may not have been written, its
key may have been written and the leader killed before it sent.

A slot that the broker does not take is tried again with each tick, for as long as
the catch-up window is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.schedules import schedstate
from kombu.exceptions import OperationalError

from celery_redlock.beat import inner
from celery_redlock.beat.due import (
    as_us,
    copy_of,
    never_ran,
    next_due,
    slots_due,
    window_from,
)
from celery_redlock.envelope import HEADER
from celery_redlock.slots import slot_name

if TYPE_CHECKING:
    from celery.beat import ScheduleEntry
    from celery.beat import Scheduler as _Base

    from celery_redlock.core.clock import Clock
    from celery_redlock.election import Term
    from celery_redlock.slots import SlotRecord
else:
    _Base = object

__all__ = ["Leading", "Office", "leading_class"]

log = logging.getLogger("celery_redlock.beat")

_MARGIN = 0.1  # of the ttl: what is left must do for sending a slot and noting it
_LATE_US = 5_000_000  # a slot that is sent later than this is mentioned
_SOON = 1.0  # seconds
_US = 1_000_000


class Office(NamedTuple):
    """What comes with a term.

    Attributes:
        term: The term.
        record: Which slots were sent.
        catchup: Seconds for which a slot that was missed is still sent.
        since: When the term began, in microseconds since 1970.
        clock: Reads time.
    """

    term: Term
    record: SlotRecord
    catchup: float
    since: int
    clock: Clock

    def may_send(self) -> bool:
        """Tell whether a slot can be sent, and noted, before the term ends."""
        return self.term.remaining() > self.term.lease.ttl * _MARGIN

    @property
    def earliest(self) -> int:
        """Slots before this instant are not sent any more."""
        # Not after now: the wall clock may have been set back.
        return min(self.since, self.clock.wall_us()) - round(self.catchup * _US)


class _Owed(NamedTuple):
    entry: ScheduleEntry
    until: int


class Leading(_Base):
    """A mixin in front of a scheduler class: made lazily, then it takes office."""

    office: Office

    def take(self, office: Office) -> None:
        """Set the schedule up and let it go on where the last leader left it."""
        self.office = office
        self._owed: dict[str, _Owed] = {}
        self._reserved: dict[str, ScheduleEntry] = {}
        inner.ignore_own_lock(self)
        self.setup_schedule()
        seen: dict[str, int] = {}
        for entry in inner.entries_of(self, office.record):
            seen |= self._take_over(entry)
        # So that the next leader knows of them also what this one does not send.
        office.record.note(seen)

    def _take_over(self, entry: ScheduleEntry) -> dict[str, int]:
        """Let one entry go on; return from when on, if slots of it are to come."""
        try:
            since = self._since(entry)
            self._mention_missed(entry)
            upcoming = next_due(entry.schedule, since)
            # Where it makes no difference, what people see as the last run stays.
            if upcoming != next_due(entry.schedule, as_us(entry.last_run_at)):
                inner.set_last_run(self, entry, since)
        except Exception:
            # Neither does Celery let one entry stop all others.
            log.exception("The next run of %r cannot be told.", entry.name)
            return {}
        return {entry.name: since} if upcoming is None or upcoming > since else {}

    def send_owed(self) -> None:
        """Try again what could not be sent, while it is worth it."""
        for name, owed in list(self._owed.items()):
            if not self.office.may_send():
                return
            del self._owed[name]
            if self.office.clock.wall_us() > owed.until:
                log.error("A slot of %r could not be sent in time, and is lost.", name)
                continue
            self.apply_entry(owed.entry, producer=self.producer)
            if name in self._owed:
                return  # the others would fare no better

    # -- what the scheduler does by itself -------------------------------------

    def is_due(self, entry: ScheduleEntry) -> Any:
        """Tell whether an entry is due, as the scheduler and the nodes agree."""
        state = super().is_due(entry)
        if not state[0] or self._slots(entry):
            return state
        if not self.office.may_send():
            return schedstate(is_due=False, next=_SOON)
        upcoming = next_due(entry.schedule, self._since(entry)) or 0
        left = (upcoming - self.office.clock.wall_us()) / _US
        return schedstate(is_due=False, next=left if left > 0 else self.max_interval)

    def reserve(self, entry: ScheduleEntry) -> ScheduleEntry:
        """Move an entry on to its next run, unless this run must not be sent now."""
        if not self.office.may_send():
            return entry
        reserved = self._reserved[entry.name] = super().reserve(entry)
        return reserved

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send an entry that is due. Errors are logged."""
        if not self.office.may_send():
            self._put_off(entry, self.office.clock.wall_us())
        elif self._slots(entry):
            super().apply_entry(entry, producer=producer)

    def apply_async(
        self,
        entry: ScheduleEntry,
        producer: Any = None,
        advance: bool = True,  # noqa: FBT001, FBT002  (Celery's)
        **options: Any,
    ) -> Any:
        """Send each slot of an entry that is due, and note it on the nodes."""
        slots = self._slots(entry)
        if advance and slots:
            self.reserve(entry)
        elif advance and self.office.may_send():
            inner.set_last_run(self, entry, self._since(entry))
        reserved = self._reserved.pop(entry.name, None)
        result = None
        for due in slots:
            if not self.office.may_send():
                self._put_off(entry, due)
                break
            stamped = _stamped(entry, due)
            try:
                result = super().apply_async(
                    stamped, producer=producer, advance=False, **options
                )
            except Exception as error:
                if _is_outage(error):
                    self._owe(entry, due)
                raise
            self._note_sent(entry, due, reserved if due == slots[-1] else None)
        return result

    # -- slots -------------------------------------------------------------------

    def _seen(self, entry: ScheduleEntry) -> int:
        """Return up to when somebody has seen to this entry."""
        seen = self.office.record.upto(entry.name)
        return as_us(entry.last_run_at) if seen is None else seen

    def _since(self, entry: ScheduleEntry) -> int:
        """Return from when on there may be slots that are still to be sent."""
        return window_from(entry.schedule, self._seen(entry), self.office.earliest)

    def _slots(self, entry: ScheduleEntry) -> list[int]:
        """Return the slots of an entry that are due and may be sent now."""
        office = self.office
        if not office.may_send():
            return []
        now, since = office.clock.wall_us(), self._since(entry)
        found = slots_due(entry.schedule, since, now)
        if never_ran(since, now):
            return found
        sent = office.record.upto(entry.name) or 0
        return [due for due in found if due > sent and due >= office.earliest]

    def _mention_missed(self, entry: ScheduleEntry) -> None:
        seen, earliest = self._seen(entry), self.office.earliest
        missed = next_due(entry.schedule, seen)
        if missed is not None and missed < earliest and not never_ran(seen, earliest):
            log.warning(
                "%s is not sent any more: it was missed while nobody led, and "
                "redlock_beat_catchup is %g s.",
                slot_name(entry.name, missed),
                self.office.catchup,
            )

    def _note_sent(
        self, entry: ScheduleEntry, due: int, reserved: ScheduleEntry | None
    ) -> None:
        late = self.office.clock.wall_us() - due
        if late > _LATE_US:
            name = slot_name(entry.name, due)
            log.info("%s was sent, %.0f s after it was due.", name, late / _US)
        # An interval counts from when it ran and not from when it was due.
        seen = due if reserved is None else as_us(reserved.last_run_at)
        self.office.record.note({entry.name: max(due, seen)})
        self._owed.pop(entry.name, None)

    def _put_off(self, entry: ScheduleEntry, due: int) -> None:
        """Leave a slot to the next leader, or to this one once it has renewed."""
        log.warning("%r is not sent now: the term ends.", entry.name)
        self._owe(entry, due)

    def _owe(self, entry: ScheduleEntry, due: int) -> None:
        until = due + round(self.office.catchup * _US)
        self._owed[entry.name] = _Owed(entry, until)


def leading_class(scheduler: type) -> Any:
    """Return the class of a scheduler that sends only while its term lasts."""
    return type(f"Leading{scheduler.__name__}", (Leading, scheduler), {})


def _stamped(entry: ScheduleEntry, due: int) -> ScheduleEntry:
    """Return the entry with the name of its slot on what it sends."""
    headers = dict(entry.options.get("headers") or {})
    headers[HEADER] = {"slot": slot_name(entry.name, due)}
    return copy_of(entry, options={**entry.options, "headers": headers})


def _is_outage(error: BaseException | None) -> bool:
    """Tell whether it is the broker that failed, and not what was to be sent."""
    while error is not None and not isinstance(error, (OperationalError, OSError)):
        error = error.__cause__ or error.__context__
    return error is not None
