"""One call of a task, as a worker got it, and how it is put back into its queue."""

from __future__ import annotations

import copy
import dataclasses
import logging
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Retry

from celery_redlock import outcome
from celery_redlock.buffering import Turn
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.envelope import Envelope, take_off
from celery_redlock.logs import about
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from celery_redlock.errors import RedlockError
    from celery_redlock.interrupt import Interrupter
    from celery_redlock.options import ResolvedOptions
    from celery_redlock.runtime import Runtime

__all__ = ["Call", "doubled", "in_seconds"]

log = logging.getLogger("celery_redlock.call")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds
_MOST_DOUBLINGS = 16


def in_seconds(duration: float | timedelta | None) -> float:
    """Return the duration of a decision; none is 0."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return duration or 0.0


def doubled(deferred: int, longest: float) -> float:
    """Return the seconds for which to put a call back: random, longer each time.

    Up to a second the first time, and to twice as long with each.
    """
    most = min(longest, 2.0 ** min(deferred, _MOST_DOUBLINGS))
    return most * random.uniform(0.5, 1.0)  # noqa: S311  (jitter)


@dataclass(slots=True)
class Call:
    """What is known of a call before its body runs.

    Attributes:
        task: The task.
        request: Celery's context of this execution.
        args: Positional arguments.
        kwargs: Keyword arguments.
        key: The name that it locks.
        envelope: What its message said to us.
        runtime: Of the task's app.
        options: The task's lock options.
        began_at: Instant since when it wants its lock.
    """

    task: Any
    request: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str
    envelope: Envelope
    runtime: Runtime
    options: ResolvedOptions
    began_at: float
    _refusals: int = 0

    @classmethod
    def of(cls, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Describe the call that the task is just executing.

        The key is computed here, once, before the body can change its arguments.

        Raises:
            ConfigurationError: A setting or an option is wrong.
            FingerprintError: The arguments cannot be reduced to a key.
        """
        request, runtime = task.request, runtime_of(task.app)
        envelope = take_off(request)
        if task.lock_options.lines_up and not envelope.published:
            now = SYSTEM_CLOCK.wall_us()
            envelope = dataclasses.replace(envelope, published=now)
        return cls(
            task=task,
            request=request,
            args=args,
            kwargs=kwargs,
            key=task.key_rule.key_of(args, kwargs),
            envelope=envelope,
            runtime=runtime,
            options=runtime.options(task.name, task.lock_options),
            began_at=runtime.redlock.clock.monotonic(),
        )

    @property
    def id(self) -> str:
        """Celery's id of the call, ``""`` without one."""
        return self.request.id or ""

    @property
    def waited(self) -> float:
        """The seconds for which it has wanted its lock."""
        return self.runtime.redlock.clock.monotonic() - self.began_at

    @property
    def has_twin(self) -> bool:
        """Whether another copy with this task id may run or have run."""
        redelivered = (self.request.delivery_info or {}).get("redelivered")
        return bool(redelivered) or self.envelope.twin

    def turn(self, keep: str) -> Turn:
        """Return its turn among those that wait for the lock; see ``buffering``."""
        return Turn(
            redlock=self.runtime.redlock,
            key=self.key,
            task=self.task.name,
            task_id=self.id,
            published=self.envelope.published,
            expires=outcome.expiry_of(self.task, self.request),
            keep=keep,
        )

    def preserve_arguments(self) -> None:
        """Keep them as they are now, where they may be sent again after the body."""
        stays = self.task.lock_options.on_lock_lost in ("abort", "warn")
        if not stays and not self.request.is_eager:
            self.args, self.kwargs = copy.deepcopy((self.args, self.kwargs))

    def drop_if_finished(self) -> None:
        """End this copy if another one with the same id has run to its end."""
        if self.has_twin and outcome.has_finished(self.task, self.request):
            log.info(
                "%s has ended already; this copy of it is dropped.",
                self,
                extra=self.about("copy-dropped"),
            )
            outcome.count_in_chord(self.task, self.request)
            raise Ignore(f"{self} has ended already")

    def put_back(
        self,
        reason: RedlockError,
        countdown: float,
        interrupter: Interrupter,
        **envelope: Any,
    ) -> None:
        """Publish the call again and end this copy of it.

        Args:
            reason: Why it cannot run now. Without a queue (a task that runs
                eagerly) this is what it ends with.
            countdown: Seconds until it may run.
            interrupter: Lets time limits in while it pauses.
            **envelope: What changes on the envelope.

        Raises:
            celery.exceptions.Retry: It was published; the result is RETRY.
            celery.exceptions.Ignore: The same, for a copy that may have a twin:
                the result is left alone.

        Returns:
            The broker did not take it. It has paused, longer each time: try
            the lock, or this, again.
        """
        if self.request.is_eager:
            raise reason
        fresh = dataclasses.replace(
            self.envelope, base=None, **{"twin": self.has_twin, **envelope}
        )
        if not fresh.twin:
            outcome.note_retry(self.task, self.request, reason)
        try:
            outcome.republish(
                self.task,
                self.request,
                (self.args, self.kwargs),
                countdown=countdown,
                envelope=fresh,
            )
        except Exception as error:  # noqa: BLE001  (each transport has its own)
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._refusals)
            pause *= random.uniform(0.5, 1.0)  # noqa: S311  (jitter)
            self._refusals += 1
            log.warning(
                "%s could not be put back into its queue (%s: %s). It keeps its slot "
                "and tries again in %.1f s.",
                self,
                type(error).__name__,
                error,
                pause,
                extra=self.about("put-back-failed"),
            )
            interrupter.expose(lambda: SYSTEM_CLOCK.sleep(pause))
            return
        log.info(
            "%s is put back for %.1f s: %s",
            self,
            countdown,
            reason,
            extra=self.about("put-back", countdown=countdown),
        )
        if fresh.twin:
            raise Ignore(f"{self} is put back for {countdown:.1f} s")
        self.request.ignore_result = True  # RETRY is stored, and may be out of date
        raise Retry(exc=reason, when=countdown)

    def about(self, event: str, **facts: object) -> dict[str, object]:
        """Return the fields of a line in the log about this call."""
        return about(event, task=self.task.name, task_id=self.id, key=self.key, **facts)

    def __str__(self) -> str:
        return f"{self.task.name}[{self.id}]"
