"""The scheduler of ``-S redlock``: it campaigns, and ticks only while it leads.

::

    tick ──► campaign ──not elected──────────────────────────► campaign again soon
                │ elected: load the record of sent slots, make
                │          the project's scheduler anew
                ▼
           the project's scheduler ticks while the term lasts ──► at ttl / 3 at most
                │ lost: that scheduler is discarded, this beat stands by
                │ the wall clock was set: it is discarded, this beat resigns
                ▼
             campaign ...

Only ``tick`` renews the term. So a beat whose loop hangs in its broker or its database
loses the term. The settings ``redlock_beat_...`` are described in `Settings`.

Beat makes a second, lazy instance for its banner, which asks no node and opens no
file. Beat's handler of SIGTERM calls ``close``, possibly in the middle of a tick, and
beat calls it again when the tick has been unwound. Only the second call takes effect.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.beat import ScheduleEntry, Scheduler

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.beat import inner_schedulers
from celery_redlock.beat.gated_scheduler import GatedScheduler, gated_class
from celery_redlock.beat.term import BeatTerm, offset_of
from celery_redlock.election import Elector, Term
from celery_redlock.errors import ConfigurationError, QuorumUnreachable
from celery_redlock.records.beat_slots import SlotRecord
from celery_redlock.signals import leader_elected, leader_resigned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

log = logging.getLogger(__name__)

_NAME = "celery beat"
_RETRY = 1.0  # seconds


def election_key(app: Celery) -> str:
    """Return the key of the election between the beats of an app, by the app's name."""
    return f"beat:{app.main or 'celery'}"


class RedlockScheduler(Scheduler):
    """A scheduler that wraps the project's own, and sends only while it leads.

    Args:
        app: The Celery app.
        lazy: The instance is for the banner only.
        max_interval: Seconds between two ticks, for the wrapped scheduler. This one
            ticks at least three times per ``redlock_beat_ttl``.
        options: Options of the wrapped scheduler.

    Raises:
        SystemExit: A setting is wrong. The message names it, with the remedy.
    """

    lock_key = None  # RedBeat's signal receiver reads it from any scheduler

    def __init__(
        self,
        app: Celery,
        *,
        lazy: bool = False,  # noqa: ARG002  (it is lazy in any case)
        max_interval: float | None = None,
        **options: Any,
    ) -> None:
        self._gated: GatedScheduler | None = None
        self._is_busy = self._is_blocked = False
        self._options = {"max_interval": max_interval, **options}
        super().__init__(app, lazy=True, max_interval=max_interval, **options)
        try:
            self._settings = runtime_of(app).settings
            self._redlock = runtime_of(app).redlock
            self._inner_class = inner_schedulers.scheduler_class(
                self._settings.beat_scheduler,
                app.conf.beat_scheduler,
                wrapper=RedlockScheduler,
            )
            self.elector = Elector(
                self._redlock,
                election_key(app),
                ttl=self._settings.beat_ttl,
                name=_NAME,
                on_elected=lambda term: leader_elected.send(sender=self, term=term),
                on_resigned=lambda term: leader_resigned.send(
                    sender=self, term=term, lost=term.was_lost
                ),
            )
        except ConfigurationError as error:
            # As in a worker: one line, where beat would print a traceback.
            raise SystemExit(f"celery-redlock: {error}") from error
        self._record = SlotRecord(self._redlock, self.elector.key)
        longest = self.elector.ttl / 3
        self.max_interval = min(max_interval or longest, longest)

    # -- ticking -----------------------------------------------------------------

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Campaign, and tick the project's scheduler if this beat leads."""
        self._is_busy = True
        try:
            return self._tick(*args, **kwargs)
        finally:
            self._is_busy = False

    def _tick(self, *args: Any, **kwargs: Any) -> float:
        gated = self._gated
        if gated is not None and gated.term.clock_was_set:
            self._hand_over(gated)
            return _RETRY
        term = self.elector.campaign()
        if gated is not None and gated.term.term is not term:
            self._gated = None
            inner_schedulers.discard(gated)
        if term is not None and self._gated is None:
            self._gated = self._begin_term(term)
        gated, pause = self._gated, self.elector.pause
        if gated is None:
            return pause
        if not self._record.flush():
            reason = "too few votes for the record of the last slots."
            self._log_blocked(reason)
            return min(pause, _RETRY)
        if self._is_blocked:
            fields = log_fields("sent-again", election=self.elector.key)
            log.info("Slots are sent again.", extra=fields)
        self._is_blocked = False
        if not gated.term.may_send():
            return pause
        began = gated.term.now
        gated.send_deferred()
        wanted: float = gated.tick(*args, **kwargs)
        if wanted > 0:
            gated.term = gated.term._replace(since=began)
        return min(wanted, pause)

    def _hand_over(self, gated: GatedScheduler) -> None:
        """Resign, because the clock of this machine was set.

        Another beat leads, whose clock may be right. If there is none, this one goes on
        from the slots on the nodes. A machine that was suspended without its monotonic
        clock does not know that its term has ended.
        """
        step = gated.term.clock_step
        log.warning(
            "The clock of this machine was set %s by %.0f s. The next leader goes on "
            "from the time that its clock shows.",
            "forward" if step > 0 else "back",
            abs(step),
            extra=log_fields("beat-clock-set", seconds=step),
        )
        self._gated = None
        inner_schedulers.discard(gated)
        self.elector.resign()

    def _begin_term(self, term: Term) -> GatedScheduler | None:
        """Make the project's scheduler anew, after loading the record of sent slots."""
        try:
            self._record.load()
        except QuorumUnreachable as error:
            self._log_blocked(f"the record of sent slots cannot be read. {error}")
            return None
        clock, catchup = self._redlock.clock, self._settings.beat_catchup
        since, offset = round(clock.wall() * 1e6), offset_of(clock)
        beat_term = BeatTerm(term, self._record, catchup, since, offset, clock)
        gated: GatedScheduler = gated_class(self._inner_class)(
            app=self.app, lazy=True, **self._options
        )
        gated.begin(beat_term)
        return gated

    def _log_blocked(self, reason: str) -> None:
        if not self._is_blocked:
            fields = log_fields("nothing-sent", election=self.elector.key)
            log.error("Nothing is sent: %s", reason, extra=fields)
        self._is_blocked = True

    # -- methods that beat calls ---------------------------------------------------

    @property
    def schedule(self) -> Mapping[str, ScheduleEntry]:
        """The schedule while this beat leads; empty while it stands by."""
        return self._gated.schedule if self._gated is not None else {}

    def should_sync(self) -> bool:
        """Tell whether the project's scheduler has to save, and the term lasts."""
        return self._gated is not None and self._gated.should_sync()

    def _do_sync(self) -> None:
        gated = self._gated
        if gated is not None and gated.term.lasts():
            gated._do_sync()  # noqa: SLF001  (the same method of the same family)

    def close(self) -> None:
        """Save, and resign, so that another beat leads at once. Twice is harmless."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            gated, self._gated = self._gated, None
            try:
                if gated is not None and gated.term.lasts():
                    gated.close()
                    inner_schedulers.cancel_save_at_exit(gated)
                elif gated is not None:
                    inner_schedulers.discard(gated)
            finally:
                self.elector.resign()
        finally:
            self._is_busy = False

    @property
    def info(self) -> str:
        """The lines for the banner."""
        inner, count = self._inner_class, len(self._redlock.labels)
        nodes = "1 node" if count == 1 else f"{count} nodes"
        lines = {
            "wraps": f"{inner.__module__}.{inner.__qualname__}",
            "leader of": f"{self.elector.key}, on {nodes}",
            "takes over": f"within {self.elector.ttl:g} s",
            "catches up": f"{self._settings.beat_catchup:g} s",
        }
        return "\n".join(f"    . {label} -> {text}" for label, text in lines.items())
