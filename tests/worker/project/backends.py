"""Result backends that store later than usual, and ones that kill their process."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from celery import current_task, states
from celery.backends.redis import RedisBackend
from celery.signals import before_task_publish

from tests.worker.project.body import stage

_LONGEST = 3.0  # seconds; a retry that may run has run by then
_COPY_COMES_WITHIN = 30.0  # seconds


class LateRetries(RedisBackend):
    """Stores RETRY of a run after the retry of that run has stored its result.

    If the retry cannot run so early, the backend stores RETRY after a few seconds.
    """

    def _set_with_state(self, key: bytes, value: str, state: str) -> Any:
        until = time.monotonic() + _LONGEST
        while state == states.RETRY and time.monotonic() < until:
            stored = self.get(key)
            if stored and self.decode_result(stored)["status"] == states.SUCCESS:
                break
            threading.Event().wait(0.01)
        return super()._set_with_state(key, value, state)


class LateResults(RedisBackend):
    """Stores a result when a copy of the call has the lock after it.

    The key of the lock is the first argument of the call.
    """

    def _set_with_state(self, key: bytes, value: str, state: str) -> Any:
        until = time.monotonic() + _COPY_COMES_WITHIN
        while state == states.SUCCESS and time.monotonic() < until:
            if len(stage().notes(current_task.request.args[0], "signal-acquired")) > 1:
                break
            threading.Event().wait(0.01)
        return super()._set_with_state(key, value, state)


class KilledInChords(RedisBackend):
    """Kills its process where it would send the body of a chord, once for each key.

    The key is the first argument of the call that ends the header of the chord.
    """

    def on_chord_part_return(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the call in its chord, and send the body if it is the last one."""
        key = request.args[0]

        def stop(**_: Any) -> None:
            if not stage().notes(key, "killed-in-chord"):
                stage().note(key, "killed-in-chord")
                self._stop()

        before_task_publish.connect(stop)
        try:
            return super().on_chord_part_return(request, *args, **kwargs)
        finally:
            before_task_publish.disconnect(stop)
            stage().note(key, "counted-in-chord")

    @staticmethod
    def _stop() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class HangsInChords(KilledInChords):
    """The same; and the process hangs there until it is killed."""

    @staticmethod
    def _stop() -> None:
        signal.pause()


class KilledAndCutOffInChords(KilledInChords):
    """The same; and the first attempt to count the call after the kill fails."""

    def on_chord_part_return(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Raise once; then do the same."""
        key = current_task.request.args[0]
        if stage().notes(key, "killed-in-chord") and not stage().notes(key, "cut-off"):
            stage().note(key, "cut-off")
            raise ConnectionError("the result backend is away")
        return super().on_chord_part_return(request, *args, **kwargs)


class KilledAndLateInChords(KilledInChords):
    """The same; and the first attempt to count the call ends after that claim.

    The claim is the right of the killed process to send the body, alone.
    """

    def on_chord_part_return(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the call; once, return when the claim of another process has ended."""
        key = current_task.request.args[0]
        claim = self.get_key_for_group(request.group, ".c")
        was_killed = stage().notes(key, "killed-in-chord")
        returned = super().on_chord_part_return(request, *args, **kwargs)
        if was_killed and not stage().notes(key, "late"):
            stage().note(key, "late")
            while self.client.get(claim) not in (None, b"done"):
                threading.Event().wait(0.05)
        return returned
