"""The warning about a worker whose processes only refuse calls, or wait with them.

Thousands of duplicates may stand in a queue behind one running call. To refuse them
takes all the time of the processes, and so do calls that wait for their lock in a
process. Meanwhile no other task of these queues runs, and nothing fails: only its
delay shows it.

::

    process of the pool   RefusalRecord ──┐
    process of the pool   RefusalRecord ──┼─ shared memory ─► main process: RefusalStep
    process of the pool   RefusalRecord ──┘                   looks, and warns once

Each process counts what it has refused since it ran a call. The main process warns if
no process is left for other tasks: each of them refuses, waits, or has run one call for
seconds. The memory is made before the pool forks. A process that is not forked from the
main process has a memory of its own, and is not watched.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any

from billiard.process import current_process

from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.log_limit import LogLimit
from celery_redlock.scripts.keys import shown

if TYPE_CHECKING:
    from collections.abc import Collection

log = logging.getLogger(__name__)

LONG = 5.0  # seconds
_MANY = 100  # refusals in a row
_WITHIN = 60.0  # seconds
_PROCESSES = 256  # more share a record, and are not watched
_TEXT = 224  # bytes of a name; the rest is cut off


class RefusalRecord(ctypes.Structure):
    """The calls that one process has refused since it last ran one."""

    _fields_ = (
        ("pid", ctypes.c_int64),  # 0 where no process has written yet
        ("in_a_row", ctypes.c_int64),  # calls that were refused
        ("waiting", ctypes.c_int64),  # calls that wait for their lock there now
        ("busy", ctypes.c_double),  # seconds that the refused calls took together
        ("refused_at", ctypes.c_double),  # the last one
        ("waiting_since", ctypes.c_double),  # the last one
        ("_task", ctypes.c_char * _TEXT),
        ("_key", ctypes.c_char * _TEXT),
    )

    @property
    def task(self) -> str:
        """Name of the last call's task, perhaps cut off."""
        return bytes(self._task).decode(errors="replace")

    @property
    def key(self) -> str:
        """Key of the last call, perhaps cut off."""
        return bytes(self._key).decode(errors="replace")

    def note(self, task: str, key: str) -> None:
        """Store the task and the key of a call."""
        self._task = task.encode(errors="replace")[:_TEXT]
        self._key = key.encode(errors="replace")[:_TEXT]

    def clear(self) -> None:
        """Reset the record: this process has refused nothing."""
        ctypes.memset(ctypes.addressof(self), 0, ctypes.sizeof(self))
        self.pid = os.getpid()

    def is_stuck(self, now: float, places: int) -> bool:
        """Tell whether the process only refuses calls, or waits in all its places."""
        if self.waiting >= places and now - self.waiting_since >= LONG:
            return True
        is_many = self.in_a_row >= _MANY or self.busy >= LONG
        return is_many and bool(now - self.refused_at < LONG)


class RefusalLog:
    """The refusals of this process, in memory that the worker's main process checks.

    Threads share it without a mutex: a number may be wrong by a few. It ``is_idle`` if
    nothing was refused since the last call that ran.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._limit = LogLimit(clock)
        self._since = 0.0
        self._waits: dict[int, float] = {}
        self._records: ctypes.Array[RefusalRecord] = (RefusalRecord * 1)()
        self.is_idle = True

    def share(self) -> None:
        """Let processes that are forked from now on write where this one reads.

        Where there can be no shared memory, no process is watched.
        """
        if len(self._records) == 1:
            with contextlib.suppress(OSError):
                self._records = RawArray(RefusalRecord, _PROCESSES)

    def refused(self, call: Any, seconds: float) -> None:
        """Note a call that was refused after so many seconds."""
        now, own = self._clock.monotonic(), self._own_record()
        if not own.in_a_row or now - self._since > _WITHIN:
            self._since, own.in_a_row, own.busy = now, 0, 0.0
        own.in_a_row += 1
        own.busy += seconds
        own.refused_at = now
        self._write(own, call)

    def waits(self, call: Any) -> None:
        """Note a call that waits for its lock in this process from now on."""
        self._waits[id(call)] = self._clock.monotonic()
        self._write(self._own_record(), call)

    def waits_no_more(self, call: Any) -> None:
        """Note that a call no longer waits for its lock."""
        self._waits.pop(id(call), None)
        self._write(self._own_record(), call)

    def ran(self) -> None:
        """Note a call whose body begins: the process is not stuck."""
        self.is_idle = True
        self._own_record().clear()

    def _own_record(self) -> RefusalRecord:
        """Return the record of this process, empty at first."""
        index: int = getattr(current_process(), "index", 0)
        own = self._records[index % len(self._records)]
        if own.pid != os.getpid():
            own.clear()
        return own

    def _write(self, own: RefusalRecord, call: Any) -> None:
        waits = self._waits.values()
        own.waiting, own.waiting_since = len(waits), max(waits, default=0.0)
        own.note(call.task.name, call.key)
        self.is_idle = False

    def records(self) -> list[RefusalRecord]:
        """Return the records of all processes, in any order."""
        return [record for record in self._records if record.pid]

    def check(
        self, pids: Collection[int], *, occupied: Collection[int], places: int = 1
    ) -> None:
        """Warn if none of these processes is left for other tasks; once a minute.

        Each has places for so many calls. The occupied ones have run one for seconds.
        """
        now = self._clock.monotonic()
        stuck = {
            record.pid: record
            for record in self.records()
            if record.pid in pids and record.is_stuck(now, places)
        }
        if not stuck or not all(pid in stuck or pid in occupied for pid in pids):
            return
        if self._limit.take() is None:
            return
        last = max(stuck.values(), key=lambda r: max(r.refused_at, r.waiting_since))
        waiting = sum(record.waiting for record in stuck.values())
        number = sum(record.in_a_row for record in stuck.values())
        log.warning(
            "This worker is busy with calls that do not get their lock (processes that "
            "do nothing else: %d of %d; calls in a row that they refused: %d; calls "
            "that wait there: %d). The last is a call of %s, for the lock %s. Other "
            "tasks of its queues wait behind them. Keep duplicates out of the queue "
            "with unique_while='queued', or give %s a queue of its own.",
            len(stuck),
            len(pids),
            number,
            waiting,
            last.task,
            shown(last.key),
            last.task,
            extra=log_fields(
                "only-refusals", task=last.task, key=last.key, number=number
            ),
        )
