"""Run the body of a call in one transaction with the record that the call is done.

::

    begin ─► look up the record ─┬─ there ──► its result; the body does not run
                                 └─ not there
                                       │
                        lock lost? ─► body ─► lock lost? ─► write the record ─► commit
                            │          │          │                 │              │
                            ▼          ▼          ▼                 ▼              ▼
                                   roll back                look again: who has done it?

The lock keeps two copies of a call from working at the same time. The record makes that
two cannot both have worked: its id is unique, and it is committed with the effects. So
the database decides alone, also between two transactions that began before there was a
record, and also when the lock was lost.

The record is not locked while the body runs, and nothing is inserted before the body. A
process that is frozen in its body would otherwise keep all later holders of the lock
waiting for as long as its connection lives. If it wakes after another one has
committed, its own record is refused, and all that it did is rolled back. That is a late
fence (``StaleFence``, in the log). The late copy then ends as every other copy that
comes when the call is done: it is dropped if the result is stored, and given the
recorded result if it is not.

==============================  ======================================================
the body                        the transaction
==============================  ======================================================
returns                         commits; what cannot be serialized is an error before
raises an error                 rolls back; FAILURE as usual. With
                                ``exactly_once_failures`` the failure is recorded
``self.retry()``, autoretry     rolls back: the call is not done yet. Errors at begin
                                and commit are retried by ``autoretry_for``, too
``Ignore``, ``Reject``          rolls back
``self.replace()``              is refused: Celery ends it by ``Ignore``
is interrupted (lock lost,      rolls back
cancelled, time limit)
==============================  ======================================================

If the answer to a commit is lost, the record says whether it took place. A record that
is not seen is no answer: the server may still be at the commit. So the same record is
written once more, in a transaction that is rolled back. Its unique id waits for the
first one, and then the record is there, or it could be written: nothing was committed.
Interrupts and soft time limits reach the body only, never the commit.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, Retry

from celery_redlock.app.autoretry import retry_as_configured
from celery_redlock.basics.backoff import doubled
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.text import printable
from celery_redlock.effects.call_records import CallRecord, now, record_id
from celery_redlock.effects.stored import MOST_NAMED, loaded, stored
from celery_redlock.errors import ConfigurationError, LeaseError, StaleFence
from celery_redlock.scripts.keys import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.effects.call_records import RecordStore

log = logging.getLogger(__name__)

_NOT_DONE = (Ignore, Reject, Retry, LeaseError, ConfigurationError, StaleFence)
_LATEST = datetime(9999, 1, 1, tzinfo=timezone.utc)
_PAUSES, _FIRST_PAUSE, _LONGEST_PAUSE = 6, 0.1, 2.0  # seconds; about 5 in all


def run_once(execution: Any, body: Callable[[], Any]) -> Any:
    """Return what the body returns, or what is recorded of the call.

    Raises:
        Exception: What the body raised, or its recorded failure. Nothing is written,
            unless the failure was recorded.
        ConfigurationError: The records cannot be used.
        StaleFence: A later holder of the lock has recorded another call with the key.
    """
    return _OnceRun(execution).run(body)


class _RollBack(Exception):  # noqa: N818  (it never leaves this module)
    """Rolls back a transaction that was for looking only."""


class _OnceRun:
    """One run of a call with a record."""

    def __init__(self, execution: Any) -> None:
        call = execution.call
        self._execution, self._call, self._options = execution, call, call.options.task
        self._records: RecordStore = call.options.records
        self._id = record_id(call)
        self._fence = execution.lease.fence if execution.lease else 0
        self._has_failed = False  # the body

    def run(self, body: Callable[[], Any]) -> Any:
        try:
            return self._run_in_transaction(body)
        except _NOT_DONE:
            raise
        except Exception as error:
            if self._has_failed:  # Celery's autoretry has seen it
                raise
            retry_as_configured(self._call.task, error)
            raise

    def _run_in_transaction(self, body: Callable[[], Any]) -> Any:
        found: CallRecord | None = None
        record: CallRecord | None = None
        returned: Any = None
        try:
            with self._transaction() as found:
                if not self._is_done_by(found):
                    self._execution.check_or_go_on()  # a database may take long
                    returned = self._run(body)
                    self._execution.check_or_go_on()
                    self._refuse_stale(found)
                    record = self._record(states.SUCCESS, returned)
                    self._records.write(record, found)
        except Exception as error:  # noqa: BLE001  (of the body, and of each driver)
            if record is not None:
                return self._after_refused_commit(record, returned, found, error)
            return self._after_failed_body(error, found)
        return returned if record is not None else self._result_in(found)

    def _transaction(self) -> Any:
        is_eager = bool(self._call.request.is_eager)
        return self._records.transaction(self._id, may_be_nested=is_eager)

    def _run(self, body: Callable[[], Any]) -> Any:
        with self._records.guarded():
            try:
                return body()
            except BaseException:
                self._has_failed = True
                raise

    def _is_done_by(self, found: CallRecord | None) -> bool:
        """Tell whether a record says that this call is done."""
        if found is None or not self._options.records_key:
            return found is not None
        age = (now() - found.recorded_at).total_seconds()
        return bool(age < self._options.exactly_once_for)

    def _refuse_stale(self, found: CallRecord | None) -> None:
        if found is not None and 0 < self._fence < found.fence:
            raise self._stale(found)

    # -- not committed ---------------------------------------------------------------

    def _after_refused_commit(
        self,
        record: CallRecord,
        returned: Any,
        before: CallRecord | None,
        error: Exception,
    ) -> Any:
        """Find out whether this run was committed, or another one, or none."""
        found = self._record_after_error(record, before, error)
        if found is None or (before is not None and found.is_of(before)):
            raise error
        if found.is_of(record):
            log.warning(
                "%s is committed, and an error followed. Its result stands.",
                self._call,
                exc_info=error,
                extra=self._call.log_fields("committed-with-error", fence=self._fence),
            )
            return returned
        return self._end_late(found)

    def _after_failed_body(self, error: Exception, before: CallRecord | None) -> Any:
        """Look whether another run has done the call; else record the failure."""
        if isinstance(error, (Ignore, Reject, Retry, ConfigurationError)):
            raise error
        lease = self._execution.lease
        is_held = lease is None or lease.is_valid()
        if not is_held:
            try:
                found = self._look()
            except Exception:
                # The error of the body is the one to raise.
                log.exception("The record of %s could not be read.", self._call)
                raise error from None
            if self._is_done_by(found) and found is not None:
                return self._end_late(found)
        is_of_body = self._has_failed and not isinstance(error, _NOT_DONE)
        if is_held and is_of_body and self._options.exactly_once_failures:
            self._record_failure(error, before)
        raise error

    def _record_failure(self, error: Exception, before: CallRecord | None) -> None:
        try:
            record = self._record(states.FAILURE, error)
            with self._transaction() as found:
                if found == before:
                    self._records.write(record, before)
        except Exception:
            # The error of the body is the one to raise; without the record it is as
            # it would be without the option.
            log.exception("The failure of %s could not be recorded.", self._call)

    def _look(self) -> CallRecord | None:
        found: CallRecord | None
        with self._transaction() as found:
            pass
        return found

    def _look_after_commits(
        self, record: CallRecord, before: CallRecord | None
    ) -> CallRecord | None:
        """Return the record, after the end of each transaction that has written it."""
        found: CallRecord | None
        try:
            with contextlib.suppress(_RollBack), self._transaction() as found:
                self._write_and_roll_back(record, found, before)
        except Exception:
            found = self._look()
            if found in (None, before):  # not the error of a record that is there
                raise
        return found

    def _write_and_roll_back(
        self, record: CallRecord, found: CallRecord | None, before: CallRecord | None
    ) -> NoReturn:
        if found in (None, before):
            self._records.write(record, found)  # waits for an undecided transaction
        raise _RollBack

    def _record_after_error(
        self, record: CallRecord, before: CallRecord | None, error: Exception
    ) -> CallRecord | None:
        """Return the record that is there after an error of a commit; None if none is.

        The database has some seconds to answer. If it does not, the error is raised.
        """
        for pauses in range(_PAUSES + 1):
            if pauses:
                SYSTEM_CLOCK.sleep(doubled(_FIRST_PAUSE, pauses - 1, _LONGEST_PAUSE))
            try:
                return self._look_after_commits(record, before)
            except Exception as unanswered:  # noqa: BLE001  (each driver has its own)
                log.warning(
                    "%s does not know yet whether it is committed (%s: %s).",
                    self._call,
                    type(unanswered).__name__,
                    unanswered,
                    extra=self._call.log_fields("commit-unknown", fence=self._fence),
                )
        raise error

    # -- done by another run ---------------------------------------------------------

    def _end_late(self, found: CallRecord) -> Any:
        """End a run that was rolled back, since another one has done the call."""
        if 0 < self._fence < found.fence:
            stale = self._stale(found)
            extra = self._call.log_fields("stale-fence", fence=self._fence)
            log.warning("%s: StaleFence: %s", self._call, stale, extra=extra)
        self._execution.drop_if_finished()
        return self._result_in(found)

    def _stale(self, found: CallRecord) -> StaleFence:
        return StaleFence(
            f"The record of {self._call} has fence {found.fence}, and this run has "
            f"fence {self._fence}: a later holder of the lock has done the call. "
            "Everything that this run did in the database is rolled back.",
            fence=self._fence,
            latest=found.fence,
        )

    def _result_in(self, found: CallRecord | None) -> Any:
        """Return the recorded result, or raise the recorded failure."""
        assert found is not None  # noqa: S101  (for mypy)
        log.info(
            "%s is done already: %s[%s] recorded %s at %s. Its body does not run.",
            self._call,
            found.task,
            found.task_id,
            found.state,
            found.recorded_at,
            extra=self._call.log_fields("recorded", fence=self._fence, record=found.id),
        )
        backend = self._call.task.backend
        kind, encoding = found.content_type, found.content_encoding
        accept = backend.accept and {*backend.accept, backend.content_type}
        value = loaded(found.result, kind, encoding, accept)
        if found.state == states.SUCCESS:
            return value
        raise backend.exception_to_python(value)

    # -- the record --------------------------------------------------------------------

    def _record(self, state: str, result: Any) -> CallRecord:
        """Return the record of this run, with what Celery would store.

        Raises:
            kombu.exceptions.EncodeError: The result cannot be serialized.
        """
        call, backend = self._call, self._call.task.backend
        request = call.request
        goes_on = request.chain or request.callbacks or request.chord
        is_stored = call.keeps_result() and not isinstance(backend, DisabledBackend)
        if state == states.SUCCESS and not (is_stored or goes_on):
            result = None  # Celery stores nothing, and a body may return anything
        encoded = backend.encode_result(result, state)
        text, kind, encoding = stored(encoded, backend.serializer)
        recorded_at = now()
        return CallRecord(
            id=self._id,
            task=printable(call.task.name[:MOST_NAMED]),
            task_id=printable(call.id[:MOST_NAMED]),
            key=shown(call.key),
            fence=self._fence,
            state=state,
            result=text,
            content_type=kind,
            content_encoding=encoding,
            recorded_at=recorded_at,
            keep_until=_end_of(recorded_at, self._options.keeps_records_for),
        )


def _end_of(begin: datetime, seconds: float) -> datetime:
    """Return the end of a period; the start of the year 9999 at the latest.

    Later instants of that year are no date in some time zones.
    """
    left = (_LATEST - begin).total_seconds()
    return begin + timedelta(seconds=min(seconds, left))
