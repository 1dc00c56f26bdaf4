"""The scheduler that ``-S redlock`` names: it campaigns, and ticks only as leader.

::

    tick ──► campaign ──not elected──────────────────────────► look again soon
                │ elected: read which slots were sent, make
                │          the project's scheduler anew
                ▼
           that one ticks, behind the deadline of the term ──► at ttl / 3 at most
                │ lost: it is given up, this beat stands by
                ▼
             campaign ...

The term is renewed by ``tick`` and by nothing else: a beat whose loop hangs, in its
broker or its database, loses it. Settings: ``redlock_beat_scheduler`` names the
project's scheduler, or else Celery's own ``beat_scheduler`` does;
``redlock_beat_ttl`` is after how long a beat that is gone is replaced, and
``redlock_beat_catchup`` how old a slot may be that is still sent.

Beat makes a second, lazy instance for its banner; that one does nothing. It closes
the scheduler from its handler of SIGTERM, which may strike in the middle of a tick,
and again when the tick has been unwound: only the latter counts then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.beat import Scheduler

from celery_redlock.beat import inner
from celery_redlock.beat.leading import Leading, leading_class
from celery_redlock.beat.office import Office
from celery_redlock.election import Elector, Term
from celery_redlock.errors import ConfigurationError, QuorumUnreachable
from celery_redlock.logs import about
from celery_redlock.runtime import runtime_of
from celery_redlock.signals import leader_elected, leader_resigned
from celery_redlock.slots import SlotRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery.beat import ScheduleEntry

__all__ = ["RedlockScheduler", "election_key"]

log = logging.getLogger("celery_redlock.beat")

_NAME = "celery beat"
_SOON = 1.0  # seconds


def election_key(app: Any) -> str:
    """Return what the beats of an app compete for: its name tells apps apart."""
    return f"beat:{app.main or 'celery'}"


class RedlockScheduler(Scheduler):
    """Any scheduler, in any number of beats, of which one sends.

    Args:
        app: The Celery app.
        lazy: Only to be shown in the banner.
        max_interval: Seconds; of the wrapped scheduler. This one comes back three
            times per ``redlock_beat_ttl`` at least.
        options: Of the wrapped scheduler.

    Raises:
        SystemExit: A setting is wrong; says which, and the remedy.
    """

    lock_key = None  # RedBeat looks for its own lock on whatever scheduler runs

    def __init__(
        self,
        app: Any,
        *,
        lazy: bool = False,  # noqa: ARG002  (there is nothing that it could put off)
        max_interval: float | None = None,
        **options: Any,
    ) -> None:
        self._leading: Leading | None = None
        self._is_busy = self._is_at_a_loss = False
        self._options = {"max_interval": max_interval, **options}
        super().__init__(app, lazy=True, max_interval=max_interval, **options)
        try:
            self._settings = runtime_of(app).settings
            self._redlock = runtime_of(app).redlock
            self._inner_class = inner.scheduler_class(
                self._settings.beat_scheduler,
                app.conf.beat_scheduler,
                not_itself=RedlockScheduler,
            )
            self.elector = Elector(
                self._redlock,
                election_key(app),
                ttl=self._settings.beat_ttl,
                name=_NAME,
                on_elected=self._tell_elected,
                on_resigned=self._tell_resigned,
            )
        except ConfigurationError as error:
            # As it ends a worker: beat would show a traceback.
            raise SystemExit(f"celery-redlock: {error}") from error
        self._record = SlotRecord(self._redlock, self.elector.key)
        longest = self.elector.ttl / 3
        self.max_interval = min(max_interval or longest, longest)

    # -- ticking -----------------------------------------------------------------

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Campaign, and let the project's scheduler tick if this beat leads.

        Returns:
            Seconds after which to come back.
        """
        self._is_busy = True
        try:
            return self._tick(*args, **kwargs)
        finally:
            self._is_busy = False

    def _tick(self, *args: Any, **kwargs: Any) -> float:
        term, leading = self.elector.campaign(), self._leading
        if leading is not None and leading.office.term is not term:
            self._leading = None
            inner.drop(leading)
        if term is not None and self._leading is None:
            self._leading = self._take_office(term)
        leading, pause = self._leading, self.elector.pause
        if leading is None:
            return pause
        if not self._record.flush():
            self._note_loss(
                "what was sent last is not noted on a majority of the nodes"
            )
            return min(pause, _SOON)
        if self._is_at_a_loss:
            fields = about("sent-again", election=self.elector.key)
            log.info("Slots are sent again.", extra=fields)
        self._is_at_a_loss = False
        if not leading.office.may_send():
            return pause
        leading.send_owed()
        wanted: float = leading.tick(*args, **kwargs)
        return min(wanted, pause)

    def _take_office(self, term: Term) -> Leading | None:
        """Make the project's scheduler go on from what was sent before."""
        try:
            self._record.load()
        except QuorumUnreachable as error:
            self._note_loss(f"which slots were sent is not known. {error}")
            return None
        clock = self._redlock.clock
        office = Office(
            term, self._record, self._settings.beat_catchup, clock.wall_us(), clock
        )
        leading: Leading = leading_class(self._inner_class)(
            app=self.app, lazy=True, **self._options
        )
        leading.take(office)
        return leading

    def _note_loss(self, reason: str) -> None:
        if not self._is_at_a_loss:
            fields = about("nothing-sent", election=self.elector.key)
            log.error("Nothing is sent: %s", reason, extra=fields)
        self._is_at_a_loss = True

    # -- what beat asks of a scheduler ---------------------------------------------

    @property
    def schedule(self) -> Mapping[str, ScheduleEntry]:
        """The schedule while this beat leads; nothing while it stands by."""
        return self._leading.schedule if self._leading is not None else {}

    def should_sync(self) -> bool:
        """Tell whether the project's scheduler wants to save, and may."""
        return self._leading is not None and self._leading.should_sync()

    def _do_sync(self) -> None:
        leading = self._leading
        if leading is not None and leading.office.lasts():
            leading._do_sync()  # noqa: SLF001  (the same method of the same family)

    def close(self) -> None:
        """Save, and let another beat lead at once. Twice is harmless."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            leading, self._leading = self._leading, None
            try:
                if leading is not None and leading.office.lasts():
                    leading.close()
                    inner.forget(leading)
                elif leading is not None:
                    inner.drop(leading)
            finally:
                self.elector.resign()
        finally:
            self._is_busy = False

    @property
    def info(self) -> str:
        """What the banner says."""
        name = f"{self._inner_class.__module__}.{self._inner_class.__qualname__}"
        facts = {
            "wraps": name,
            "leader of": f"{self.elector.key}, on {len(self._redlock.labels)} nodes",
            "takes over": f"within {self.elector.ttl:g} s",
            "catches up": f"{self._settings.beat_catchup:g} s",
        }
        return "\n".join(f"    . {name} -> {fact}" for name, fact in facts.items())

    # -- signals ---------------------------------------------------------------------

    def _tell_elected(self, term: Term) -> None:
        leader_elected.send(sender=self, term=term)

    def _tell_resigned(self, term: Term) -> None:
        leader_resigned.send(sender=self, term=term, lost=term.was_lost)
