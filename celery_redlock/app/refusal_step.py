"""The part of a worker's main process that checks `RefusalLog` every few seconds."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_redlock.app.refusal_log import LONG
from celery_redlock.app.runtime import runtime_of


class RefusalStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Calls `RefusalLog.check` while there is a connection to the broker."""

    def __init__(self, parent: Any, **named: Any) -> None:
        super().__init__(parent, **named)
        self._timer: Any = None
        self._refusals = runtime_of(parent.app).refusal_log

    def start(self, parent: Any) -> None:
        """Look at the pool every few seconds from now on."""
        self._timer = parent.timer.call_repeatedly(LONG / 2, self._look, (parent.pool,))

    def stop(self, parent: Any) -> None:  # noqa: ARG002  (Celery's)
        """Stop looking at the pool."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, pool: Any) -> None:
        if not pool.active:  # a cold shutdown stops it before the timer
            return
        own = [os.getpid()]
        pids = pool.info.get("processes") or own
        if pids == own:  # threads, greenlets, or solo
            self._refusals.check(own, occupied=(), places=pool.limit)
            return
        began = time.time() - LONG
        occupied = {
            request.worker_pid
            for request in list(state.active_requests)
            if request.time_start and request.time_start < began
        }
        self._refusals.check(pids, occupied=occupied)
