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
the catch-up window is. While what was sent cannot be noted nothing more is sent, so
that a leader that is cut off leaves one slot at most that is sent twice.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery.schedules import schedstate, schedule
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
from celery_redlock.beat.office import Gate, TermEnds
from celery_redlock.envelope import HEADER
from celery_redlock.logs import about
from celery_redlock.slots import slot_name

if TYPE_CHECKING:
    from celery.beat import ScheduleEntry
    from celery.beat import Scheduler as _Base

    from celery_redlock.beat.office import Office
else:
    _Base = object

__all__ = ["Leading", "leading_class"]

log = logging.getLogger("celery_redlock.beat")

_LATE_US = 5_000_000  # a slot that is sent later than this is mentioned
_SOON = 1.0  # seconds
_US = 1_000_000


class Leading(_Base):
    """A mixin in front of a scheduler class: made lazily, then it takes office."""

    office: Office

    def take(self, office: Office) -> None:
        """Set the schedule up and let it go on where the last leader left it."""
        self.office = office
        self._owed: dict[str, ScheduleEntry] = {}
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
        for name, entry in list(self._owed.items()):
            if not self.office.may_send():
                return
            del self._owed[name]
            self._give_up_old(entry)
            try:
                self.apply_async(entry, producer=self.producer, advance=False)
            except Exception as error:
                if name in self._owed:
                    # Celery has said so, with a traceback, at the first try.
                    log.info("%r could still not be sent: %s", name, error)
                    return  # the others would fare no better
                log.exception("%r could not be sent.", name)

    def _give_up_old(self, entry: ScheduleEntry) -> None:
        """Let slots go that could not be sent within the catch-up window."""
        slots, too_late = self._waiting(entry), self.office.too_late
        since = window_from(entry.schedule, self._seen(entry), too_late)
        if not slots or since <= self._seen(entry):
            return
        self.office.record.note({entry.name: since})
        left = self._waiting(entry)
        if left and left[0] not in slots:
            return  # an interval is late, and there is nothing but that to lose
        for due in slots[: len(slots) - len(left)]:
            name = slot_name(entry.name, due)
            text = "%s could not be sent in time, and is lost."
            log.error(text, name, extra=about("slot-lost", slot=name))

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

    def should_sync(self) -> bool:
        """Tell whether the scheduler wants to save, and may."""
        return self.office.lasts() and bool(super().should_sync())

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send an entry that is due. Errors are logged."""
        if not self.office.may_send():
            self._put_off(entry)
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
                self._put_off(entry)
                break
            last = reserved if due == slots[-1] else None
            try:
                with ExitStack() as until_noted:
                    gate = Gate(producer or self.producer, self.office, until_noted)
                    result = super().apply_async(
                        _stamped(entry, due), producer=gate, advance=False, **options
                    )
                    self._note_sent(entry, due, last)
            except Exception as error:
                if _has(error, TermEnds):
                    self._put_off(entry)
                    break
                if _has(error, (OperationalError, OSError)):  # the broker's fault
                    self._owed[entry.name] = entry
                raise
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
        return self._waiting(entry) if self.office.may_send() else []

    def _waiting(self, entry: ScheduleEntry) -> list[int]:
        """Return the slots of an entry that are due and were not sent, oldest first."""
        office = self.office
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
            name = slot_name(entry.name, missed)
            log.warning(
                "%s is not sent any more: it was missed while nobody led, and "
                "redlock_beat_catchup is %g s.",
                name,
                self.office.catchup,
                extra=about("slot-missed", slot=name),
            )

    def _note_sent(
        self, entry: ScheduleEntry, due: int, reserved: ScheduleEntry | None
    ) -> None:
        now = self.office.clock.wall_us()
        if now - due > _LATE_US:
            name, late = slot_name(entry.name, due), (now - due) / _US
            extra = about("slot-late", slot=name, seconds=late)
            log.info("%s was sent, %.0f s after it was due.", name, late, extra=extra)
        # An interval counts from when it ran and not from when it was due.
        if reserved is not None:
            due = max(due, as_us(reserved.last_run_at))
        elif isinstance(entry.schedule, schedule):
            due = now
        self.office.record.note({entry.name: due})
        self._owed.pop(entry.name, None)

    def _put_off(self, entry: ScheduleEntry) -> None:
        """Leave a slot to the next leader, or to this one when it may send again."""
        reason = (
            "what was sent before is not noted yet"
            if self.office.lasts()
            else "the term ends"
        )
        extra = about("slot-put-off", entry=entry.name)
        log.warning("%r is not sent now: %s.", entry.name, reason, extra=extra)
        self._owed[entry.name] = entry


def leading_class(scheduler: type) -> Any:
    """Return the class of a scheduler that sends only while its term lasts."""
    return type(f"Leading{scheduler.__name__}", (Leading, scheduler), {})


def _stamped(entry: ScheduleEntry, due: int) -> ScheduleEntry:
    """Return the entry with the name of its slot on what it sends."""
    headers = dict(entry.options.get("headers") or {})
    headers[HEADER] = {"slot": slot_name(entry.name, due)}
    return copy_of(entry, options={**entry.options, "headers": headers})


def _has(
    error: BaseException | None,
    kind: type[BaseException] | tuple[type[BaseException], ...],
) -> bool:
    """Tell whether an error is of this kind, or comes from one that is."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None
