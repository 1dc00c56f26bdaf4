"""The warning about a worker whose processes only refuse calls, or wait with them.

Thousands of duplicates may stand in a queue behind one running call. To refuse them
takes all the time of the processes, and so do calls that wait for their lock in a
process. Meanwhile no other task of these queues runs, and nothing fails: only its
delay shows it.

::

    process of the pool   RefusalRecord ──┐
    process of the pool   RefusalRecord ──┼─ shared memory ─► main process: RefusalWatch
    process of the pool   RefusalRecord ──┘                   looks, and warns once

Each process counts what it has refused since it ran a call. The main process warns if
no process is left for other tasks: each of them refuses, waits, or has run one call for
seconds. The memory is made before the pool forks. A process that is not forked from the
main process has a memory of its own, and is not watched.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard.process import current_process

from celery_redlock.basics.clock import SYSTEM_CLOCK, Clock
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.log_limit import LogLimit
from celery_redlock.scripts.keys import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["LONG", "RefusalLog", "RefusalRecord", "RefusalWatch"]

log = logging.getLogger(__name__)

LONG = 5.0  # seconds
_MANY = 100  # refusals in a row
_WITHIN = 60.0  # seconds
_PLACES = 256  # processes; more share a place, and are not watched
_NUMBERS = struct.Struct("=qqqdddHH")
_SIZE = 512  # bytes of a place: the numbers, then the task's name and the key
_TEXT = (_SIZE - _NUMBERS.size) // 2


class RefusalRecord(NamedTuple):
    """The calls that one process has refused since it last ran one.

    Attributes:
        pid: The process.
        in_a_row: The number of calls.
        waiting: The number of calls that wait for their lock in the process now.
        busy: Seconds that the refused calls took together.
        refused_at: Instant of the last one.
        waiting_since: Instant at which the last of these began to wait.
        task: Name of the task of the last call.
        key: Its key, of which the end may be missing.
    """

    pid: int = 0
    in_a_row: int = 0
    waiting: int = 0
    busy: float = 0.0
    refused_at: float = 0.0
    waiting_since: float = 0.0
    task: str = ""
    key: str = ""

    def is_stuck(self, now: float, places: int) -> bool:
        """Tell whether the process, with so many calls at a time, does nothing else."""
        if self.waiting >= places and now - self.waiting_since >= LONG:
            return True
        is_many = self.in_a_row >= _MANY or self.busy >= LONG
        return is_many and now - self.refused_at < LONG


class RefusalLog:
    """Notes what this process refuses, where the main process of its worker reads it.

    Threads share it without a mutex: a number may be wrong by a few.

    Args:
        clock: Reads time.

    Attributes:
        is_idle: Whether nothing was refused since the last call that ran.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._memory: bytearray | mmap.mmap = bytearray(_SIZE)
        self._record = RefusalRecord()
        self._since = 0.0
        self._waits: dict[int, float] = {}
        self.is_idle = True

    def share(self) -> None:
        """Let processes that are forked from now on write where this one reads."""
        if isinstance(self._memory, bytearray):
            self._memory = mmap.mmap(-1, _PLACES * _SIZE)

    def refused(self, call: Any, seconds: float) -> None:
        """Note a call that was refused after so many seconds."""
        now, last = self._clock.monotonic(), self._record
        if not last.in_a_row or now - self._since > _WITHIN:
            self._since, last = now, RefusalRecord()
        self._write(
            call,
            in_a_row=last.in_a_row + 1,
            busy=last.busy + seconds,
            refused_at=now,
        )

    def waits(self, call: Any) -> None:
        """Note a call that waits for its lock in this process from now on."""
        self._waits[id(call)] = self._clock.monotonic()
        self._write(call)

    def waits_no_more(self, call: Any) -> None:
        """Note the end of the wait."""
        self._waits.pop(id(call), None)
        self._write(call)

    def ran(self) -> None:
        """Note a call whose body begins: the process is not stuck."""
        self.is_idle, self._record = True, RefusalRecord()
        self._store(self._record)

    def _write(self, call: Any, **changes: Any) -> None:
        waits = self._waits.values()
        record = self._record._replace(
            waiting=len(waits),
            waiting_since=max(waits, default=0.0),
            task=call.task.name,
            key=call.key,
            **changes,
        )
        self.is_idle, self._record = False, record
        self._store(record)

    def _store(self, record: RefusalRecord) -> None:
        places = len(self._memory) // _SIZE
        at = getattr(current_process(), "index", 0) % places * _SIZE
        *numbers, task, key = record._replace(pid=os.getpid())
        texts = [text.encode(errors="replace")[:_TEXT] for text in (task, key)]
        _NUMBERS.pack_into(self._memory, at, *numbers, *map(len, texts))
        text_at = at + _NUMBERS.size
        self._memory[text_at : text_at + len(texts[0])] = texts[0]
        text_at += _TEXT
        self._memory[text_at : text_at + len(texts[1])] = texts[1]

    def records(self) -> Iterator[RefusalRecord]:
        """Yield what the processes have noted, in any order."""
        for at in range(0, len(self._memory), _SIZE):
            *numbers, task, key = _NUMBERS.unpack_from(self._memory, at)
            if not numbers[0]:
                continue
            text_at = at + _NUMBERS.size
            texts = (
                bytes(self._memory[text_at : text_at + task]),
                bytes(self._memory[text_at + _TEXT : text_at + _TEXT + key]),
            )
            yield RefusalRecord(*numbers, *(t.decode(errors="replace") for t in texts))


class RefusalWatch:
    """Warns, in the main process of a worker, that no process is left for other tasks.

    Args:
        refusals: What the processes have noted.
        clock: Reads time.
    """

    def __init__(self, refusals: RefusalLog, clock: Clock = SYSTEM_CLOCK) -> None:
        self._refusals, self._clock = refusals, clock
        self._limit = LogLimit(clock)

    def check(
        self, pids: Collection[int], *, occupied: Collection[int], places: int = 1
    ) -> None:
        """Warn if all processes are stuck, or as good as that; at most once a minute.

        Args:
            pids: The processes that run calls.
            occupied: Those that have run one call for seconds.
            places: How many calls each of them runs at a time.
        """
        now = self._clock.monotonic()
        stuck = {
            record.pid: record
            for record in self._refusals.records()
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
