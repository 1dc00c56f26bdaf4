"""One call of a task in a worker: what is known of it, and how it is republished."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Retry

from celery_redlock.app.runtime import runtime_of
from celery_redlock.core import backoff
from celery_redlock.core.backoff import jittered
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.log_fields import log_fields
from celery_redlock.core.records.successors import SuccessorRegister
from celery_redlock.task import outcome
from celery_redlock.task.header import TaskHeader, extract

if TYPE_CHECKING:
    from celery_redlock.app.runtime import Runtime
    from celery_redlock.errors import RedlockError
    from celery_redlock.options.lock_options import ResolvedOptions
    from celery_redlock.task.interrupt import Interrupter

__all__ = ["Call"]

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds


@dataclass(slots=True)
class Call:
    """A call before its body runs.

    Attributes:
        task: The task.
        request: Celery's context of this execution.
        id: Celery's id of the call, ``""`` without one.
        args: Positional arguments.
        kwargs: Keyword arguments.
        key: The name that it locks.
        header: The header of its message.
        is_redelivered: Whether another copy with this task id may run or have run.
        runtime: The runtime of the task's app.
        options: The task's lock options.
        began_at: Instant at which it began to want its lock.
    """

    task: Any
    request: Any
    id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str
    header: TaskHeader
    is_redelivered: bool
    runtime: Runtime
    options: ResolvedOptions
    began_at: float
    _refusals: int = 0

    @classmethod
    def of(
        cls, task: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """Return the call that the task executes now.

        Its key is computed here, once, before the body can change its arguments.

        Raises:
            ConfigurationError: A setting or an option is wrong.
            FingerprintError: The arguments cannot be reduced to a key.
        """
        runtime, header = runtime_of(task.app), extract(request)
        delivery = request.delivery_info or {}
        if task.lock_options.registers_successors and not header.published:
            now = round(SYSTEM_CLOCK.wall() * 1e6)
            header = header._replace(published=now)
        return cls(
            task=task,
            request=request,
            id=request.id or "",
            args=args,
            kwargs=kwargs,
            key=task.key_rule.key_of(args, kwargs),
            header=header,
            is_redelivered=header.redelivered or bool(delivery.get("redelivered")),
            runtime=runtime,
            options=runtime.options(task.name, task.lock_options),
            began_at=runtime.redlock.clock.monotonic(),
        )

    @property
    def waited(self) -> float:
        """Seconds for which the call has wanted its lock."""
        return self.runtime.redlock.clock.monotonic() - self.began_at

    def register(self, keep: str) -> SuccessorRegister:
        """Return the successor register of its key, entered for this call."""
        return SuccessorRegister(
            redlock=self.runtime.redlock,
            key=self.key,
            task=self.task.name,
            task_id=self.id,
            published=self.header.published,
            expires=outcome.expiry_of(self.task, self.request),
            keep=keep,
        )

    def preserve_arguments(self) -> None:
        """Copy the arguments, which may be republished after the body."""
        if not self.request.is_eager:
            self.args, self.kwargs = copy.deepcopy((self.args, self.kwargs))

    def drop_if_finished(self) -> None:
        """End this copy if another copy with the same id has finished."""
        if outcome.has_finished(self.task, self.request):
            log.info(
                "%s has finished already; this copy of it is dropped.",
                self,
                extra=self.log_fields("copy-dropped"),
            )
            outcome.count_in_chord(self.task, self.request)
            raise Ignore(f"{self} has finished already")

    def republish(
        self,
        reason: RedlockError,
        countdown: float,
        interrupter: Interrupter,
        **header: Any,
    ) -> None:
        """Publish the call again and end this copy of it.

        Args:
            reason: Why it cannot run now. A task that runs eagerly has no queue and
                ends with this error.
            countdown: Seconds until it may run.
            interrupter: Lets time limits in during a pause.
            **header: Fields of the header that change.

        Raises:
            celery.exceptions.Retry: It was published; the result is RETRY.
            celery.exceptions.Ignore: It was published; the result is left alone,
                since another copy of the call may own it.

        Returns:
            The broker did not accept it. The call has paused, longer each time: try
            the lock, or this method, again.
        """
        if self.request.is_eager:
            raise reason
        fields = {"redelivered": self.is_redelivered, **header}
        fresh = self.header._replace(base=None, **fields)
        if not fresh.redelivered:
            outcome.note_retry(self.task, self.request, reason)
        try:
            outcome.republish(
                self.task,
                self.request,
                (self.args, self.kwargs),
                countdown=countdown,
                header=fresh,
            )
        except Exception as error:  # noqa: BLE001  (each transport has its own)
            pause = jittered(
                backoff.doubled(_FIRST_PAUSE, self._refusals, _LONGEST_PAUSE)
            )
            self._refusals += 1
            log.warning(
                "%s could not be republished (%s: %s). It keeps its worker process and "
                "tries again in %.1f s.",
                self,
                type(error).__name__,
                error,
                pause,
                extra=self.log_fields("republish-failed"),
            )
            interrupter.interruptible(lambda: SYSTEM_CLOCK.sleep(pause))
            return
        log.info(
            "%s is republished, to run after %.1f s: %s",
            self,
            countdown,
            reason,
            extra=self.log_fields("republished", countdown=countdown),
        )
        if fresh.redelivered:
            raise Ignore(f"{self} is republished, to run after {countdown:.1f} s")
        self.request.ignore_result = True  # RETRY is stored, and may be outdated by now
        raise Retry(exc=reason, when=countdown)

    def skip(self, error: Exception, **fields: Any) -> Ignore:
        """Finish the result as REVOKED; see ``outcome.skip``. Raise what it returns."""
        return outcome.skip(self.task, self.request, error, **fields)

    def has_ended(self, task_id: str) -> bool:
        """Tell whether a stored result says that another call of the task has ended."""
        return outcome.has_ended(self.task, self.request, task_id)

    def log_fields(self, event: str, **facts: object) -> dict[str, object]:
        """Return the fields of a log line about this call."""
        return log_fields(
            event, task=self.task.name, task_id=self.id, key=self.key, **facts
        )

    def __str__(self) -> str:
        return f"{self.task.name}[{self.id}]"
