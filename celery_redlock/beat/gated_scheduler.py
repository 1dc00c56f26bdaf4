"""The project's scheduler during one term: it sends the due slots and records them.

``gated_class`` puts ``GatedScheduler`` in front of the project's class, and each term
has a new instance. The scheduler ticks as usual, through these gates:

::

    tick ──► is_due ──► reserve ──► apply_entry ──► apply_async ──► record the slot
               │           │             │               │           on the nodes
               │           └─────────────┴───────────────┤
      the slot was sent                  less than a tenth of the ttl is left: nothing
      before: not due                    is sent, and nothing is raised, because an
                                         error would end beat

The nodes record which slots of an entry were sent (``records.beat_slots``). The
scheduler's own memory does not count: its file may be old, its row may be unwritten,
and a leader may have stored a last run and died before it sent the message.

A slot that the broker refuses is tried again with each tick, within the catch-up
window. While the last slot is not recorded, no other slot is sent. So a leader that is
cut off leaves at most one slot that the next leader sends again.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery.schedules import schedstate, schedule
from kombu.exceptions import OperationalError

from celery_redlock.basics.log_fields import log_fields
from celery_redlock.beat import inner_schedulers
from celery_redlock.beat.due_entries import (
    copy_of,
    cut_to_window,
    last_run_of,
    never_ran,
    next_due,
    slots_due,
)
from celery_redlock.beat.term import DeadlineProducer, TermEnding
from celery_redlock.task.header import HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from celery.beat import ScheduleEntry
    from celery.beat import Scheduler as _Base

    from celery_redlock.beat.term import BeatTerm
else:
    _Base = object

log = logging.getLogger(__name__)

_LATE_US = 5_000_000  # a slot that is sent later than this is logged
_RETRY = 1.0  # seconds
_MOST_MISSED = 100  # slots of an entry that are counted for the log
_US = 1_000_000


class GatedScheduler(_Base):
    """A mixin for a scheduler class that is made lazily and then begins a term."""

    term: BeatTerm

    def begin(self, term: BeatTerm) -> None:
        """Set the schedule up, and continue after the last recorded slots."""
        self.term = term
        self._deferred: dict[str, ScheduleEntry] = {}
        self._reserved: dict[str, ScheduleEntry] = {}
        inner_schedulers.disable_own_lock(self)
        inner_schedulers.read_all_hours(self)
        changes = inner_schedulers.changes_of_rows(self)
        self.setup_schedule()
        starts: dict[str, int] = {}
        for entry in inner_schedulers.entries_of(self, term.record):
            starts |= self._continue(entry, changes)
        # So the next leader knows also the entries that this one does not send.
        term.record.note(starts)

    def _continue(
        self, entry: ScheduleEntry, changes: Mapping[str, datetime]
    ) -> dict[str, int]:
        """Set the last run of an entry, from which its next slots are counted.

        Return it by the name of the entry, to be recorded; nothing for an entry that is
        broken, or whose one instant has passed: that slot may still have to be sent.
        """
        try:
            handled = self._recorded_until(entry)
            handled = max(handled, inner_schedulers.enabled_at(entry, changes))
            since = cut_to_window(entry.schedule, handled, self.term.earliest)
            if inner_schedulers.is_enabled(entry):
                self._log_missed(entry, handled)
            upcoming = next_due(entry.schedule, since)
            # The last run that users see stays if it leads to the same next run.
            if upcoming != next_due(entry.schedule, last_run_of(entry)):
                inner_schedulers.set_last_run(self, entry, since)
        except Exception:
            # As in Celery, one broken entry does not stop the others.
            log.exception("The next run of %r cannot be computed.", entry.name)
            return {}
        return {entry.name: since} if upcoming is None or upcoming > since else {}

    def send_deferred(self) -> None:
        """Try again to send the slots that could not be sent, within the window."""
        for name, entry in list(self._deferred.items()):
            if not self.term.may_send():
                return
            del self._deferred[name]
            if not inner_schedulers.is_wanted(self, entry):
                log.info("%r is not sent: it was removed or disabled.", name)
                continue
            self._give_up_old(entry)
            try:
                self.apply_async(entry, producer=self.producer, advance=False)
            except Exception as error:
                if name in self._deferred:
                    # Celery has logged the first failure with a traceback.
                    log.info("%r could not be sent again: %s", name, error)
                    return  # the broker would refuse the other entries, too
                log.exception("%r could not be sent.", name)

    def _give_up_old(self, entry: ScheduleEntry) -> None:
        """Record slots that became older than the window as lost, and log them."""
        slots, handled = self._unsent(entry), self._handled_until(entry)
        since = cut_to_window(entry.schedule, handled, self.term.too_late)
        if not slots or since <= handled:
            return
        self.term.record.note({entry.name: since})
        left = self._unsent(entry)
        if left and left[0] not in slots:
            return  # an interval has one slot, which is late and not lost
        for due in slots[: len(slots) - len(left)]:
            name = self.term.record.slot_name(entry.name, due)
            log.error(
                "%s could not be sent within redlock_beat_catchup (%g s), and is lost.",
                name,
                self.term.catchup,
                extra=log_fields("slot-lost", slot=name),
            )

    # -- methods of the scheduler, with a gate ---------------------------------

    def is_due(self, entry: ScheduleEntry) -> Any:
        """Tell whether an entry is due for the scheduler, and has a slot to send."""
        state = super().is_due(entry)
        if not state[0] or self._sendable(entry):
            return state
        if not self.term.may_send():
            return schedstate(is_due=False, next=_RETRY)
        upcoming = next_due(entry.schedule, self._since(entry)) or 0
        left = upcoming / _US - self.term.clock.wall()
        return schedstate(is_due=False, next=left if left > 0 else self.max_interval)

    def reserve(self, entry: ScheduleEntry) -> ScheduleEntry:
        """Move an entry on to its next run, if this run may be sent now."""
        if not self.term.may_send():
            return entry
        reserved = self._reserved[entry.name] = super().reserve(entry)
        return reserved

    def should_sync(self) -> bool:
        """Tell whether the scheduler has to save, and the term lasts."""
        return self.term.lasts() and bool(super().should_sync())

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send an entry that is due. Errors are logged."""
        if not self.term.may_send():
            self._defer(entry)
        elif self._sendable(entry):
            super().apply_entry(entry, producer=producer)

    def apply_async(
        self,
        entry: ScheduleEntry,
        producer: Any = None,
        advance: bool = True,  # noqa: FBT001, FBT002  (Celery's)
        **options: Any,
    ) -> Any:
        """Send each slot of an entry that is due, and record it on the nodes."""
        slots = self._sendable(entry)
        if advance and slots:
            self.reserve(entry)
        elif advance and self.term.may_send():
            inner_schedulers.set_last_run(self, entry, self._since(entry))
        reserved = self._reserved.pop(entry.name, None)
        result = None
        for due in slots:
            if not self.term.may_send():
                self._defer(entry)
                break
            last = reserved if due == slots[-1] else None
            try:
                with ExitStack() as recorded:
                    given = producer or self.producer
                    gate = DeadlineProducer(given, self.term, until_recorded=recorded)
                    message = self._message(entry, due)
                    result = super().apply_async(
                        message, producer=gate, advance=False, **options
                    )
                    self._record_sent(entry, due, last)
            except Exception as error:
                if _comes_from(error, TermEnding):
                    self._defer(entry)
                    break
                if _comes_from(error, (OperationalError, OSError)):  # of the broker
                    self._deferred.setdefault(entry.name, entry)
                raise
        return result

    # -- slots -------------------------------------------------------------------

    def _recorded_until(self, entry: ScheduleEntry) -> int:
        """Return the instant up to which all slots of an entry were sent or given up.

        The record says so, or else the entry's last run.
        """
        recorded = self.term.record.upto(entry.name)
        return last_run_of(entry) if recorded is None else recorded

    def _handled_until(self, entry: ScheduleEntry) -> int:
        """Return the instant up to which nothing is left to send, during the term.

        It is `_recorded_until`, or a later last run: that of an entry that was disabled
        and is enabled again. A slot that the broker has refused is left to send.
        """
        recorded = self._recorded_until(entry)
        if entry.name in self._deferred:
            return recorded
        return max(recorded, last_run_of(entry))

    def _since(self, entry: ScheduleEntry) -> int:
        """Return the instant after which slots may still have to be sent."""
        handled = self._handled_until(entry)
        return cut_to_window(entry.schedule, handled, self.term.earliest)

    def _sendable(self, entry: ScheduleEntry) -> list[int]:
        """Return the unsent slots of an entry, if the term allows to send them now."""
        return self._unsent(entry) if self.term.may_send() else []

    def _unsent(self, entry: ScheduleEntry) -> list[int]:
        """Return the slots of an entry that are due and were not sent, oldest first.

        A fixed instant that had passed when its entry was made is one of them.
        """
        term, now, since = self.term, self.term.now, self._since(entry)
        found = slots_due(entry.schedule, since, now)
        if never_ran(since, now):
            return found
        sent, made = term.record.upto(entry.name) or 0, self._recorded_until(entry)
        earliest = term.earliest
        return [d for d in found if d > sent and (d >= earliest or d <= made)]

    def _log_missed(self, entry: ScheduleEntry, handled: int) -> None:
        earliest = self.term.earliest
        if never_ran(handled, earliest):
            return
        missed = slots_due(entry.schedule, handled, earliest - 1, most=_MOST_MISSED)
        if not missed:
            return
        name, more = self.term.record.slot_name(entry.name, missed[0]), len(missed) - 1
        number = f"{more} or more" if len(missed) == _MOST_MISSED else f"{more}"
        log.warning(
            "%s%s not sent: no beat has sent %s, and redlock_beat_catchup (%g s) is "
            "over.",
            name,
            f" and {number} later slots of it are" if more else " is",
            "them" if more else "it",
            self.term.catchup,
            extra=log_fields("slot-missed", slot=name),
        )

    def _message(self, entry: ScheduleEntry, due: int) -> ScheduleEntry:
        """Return the entry with the name of the slot in the headers of its message."""
        if self.term.record.comes_again(entry.name, due):
            return entry  # a task drops a name that it has seen
        headers = dict(entry.options.get("headers") or {})
        headers[HEADER] = {"slot": self.term.record.slot_name(entry.name, due)}
        return copy_of(entry, options={**entry.options, "headers": headers})

    def _record_sent(
        self, entry: ScheduleEntry, due: int, reserved: ScheduleEntry | None
    ) -> None:
        now = self.term.now
        if now - due > _LATE_US:
            name, late = self.term.record.slot_name(entry.name, due), (now - due) / _US
            extra = log_fields("slot-late", slot=name, seconds=late)
            log.info("%s was sent %.0f s after it was due.", name, late, extra=extra)
        # An interval counts from the instant at which it ran, not from its due time.
        if reserved is not None:
            due = max(due, last_run_of(reserved))
        elif isinstance(entry.schedule, schedule):
            due = now
        self.term.record.note({entry.name: due})
        self._deferred.pop(entry.name, None)
        if inner_schedulers.runs_once(entry) and self.term.lasts():
            self._do_sync()  # the next leader would send its next slot

    def _defer(self, entry: ScheduleEntry) -> None:
        """Keep an entry for a later tick. The next leader sends it if the term ends."""
        reason = self.term.obstacle() or "the term ends"
        extra = log_fields("slot-deferred", entry=entry.name)
        log.warning("%r is not sent now: %s.", entry.name, reason, extra=extra)
        self._deferred.setdefault(entry.name, entry)


def gated_class(scheduler: type) -> Any:
    """Return a subclass of a scheduler that sends only while its term lasts."""
    return type(f"Gated{scheduler.__name__}", (GatedScheduler, scheduler), {})


def _comes_from(
    error: BaseException | None,
    kind: type[BaseException] | tuple[type[BaseException], ...],
) -> bool:
    """Tell whether an error or one of its causes is of this kind."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None
