"""The facts of one call in a worker, known before its body runs."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_redlock.app.runtime import Runtime, runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.text import check_id
from celery_redlock.errors import ConfigurationError
from celery_redlock.line.successors import SuccessorRegister
from celery_redlock.locks.lease import family_of
from celery_redlock.options.broker import is_broadcast
from celery_redlock.task.header import TaskHeader, extract, note_published_at
from celery_redlock.task.message import as_received
from celery_redlock.task.publishing import end_place_and_claim
from celery_redlock.task.results import has_ended

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.limits import Limits
    from celery_redlock.options.lock_options import ResolvedOptions


@dataclass(frozen=True, slots=True)
class Call:
    """The facts of one copy of a call, as its message and its task say them.

    Attributes:
        limits: The limits of the permits that it needs; empty for a plain lock.
        is_redelivered: Whether another copy with this task id may run or have run.
        began_at: Instant at which it began to want its lock.
        sent: The arguments in its message, if there is one. A base class of the project
            can remove some of them before the task gets the call.
    """

    task: Task
    request: Context
    id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str
    limits: Limits
    header: TaskHeader
    is_redelivered: bool
    runtime: Runtime
    options: ResolvedOptions
    began_at: float
    sent: tuple[Any, Any]

    @classmethod
    def of(
        cls, task: Task, request: Context, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """Return the call that the task executes now, with its key.

        The key is computed once, before the body can change the arguments.

        Raises:
            ConfigurationError: A setting or an option is wrong.
            FingerprintError: The arguments cannot be reduced to a key.
            ValueError: Nodes cannot store its task id. A worker rejects such a
                message before this.
        """
        runtime, header = runtime_of(task.app), extract(request)
        if request.is_eager and request.id:
            check_id(request.id)
        delivery, given = request.delivery_info or {}, (args, kwargs)
        try:
            _refuse_broadcast(task, delivery.get("exchange") or "")
            received = as_received(task, *given) if request.is_eager else given
            key, limits = task.key_rule.wanted_by(
                *received, headers=request.headers, may_have_more=True
            )
            options = runtime.options(task)
        except BaseException:
            end_place_and_claim(task.app, header, request.id, task.name)
            raise
        if header.slot and request.parent_id:
            header = header._replace(slot="")  # that of the task that has sent it
        has_order = task.lock_options.registers_successors or options.task.has_backlog
        if has_order and not header.published:
            now = round(SYSTEM_CLOCK.wall() * 1e6)
            header = header._replace(published=now)
        note_published_at(request, header.published)
        return cls(
            task=task,
            request=request,
            id=request.id or "",
            args=args,
            kwargs=kwargs,
            key=key,
            limits=limits,
            header=header,
            is_redelivered=header.redelivered or bool(delivery.get("redelivered")),
            runtime=runtime,
            options=options,
            began_at=runtime.redlock.clock.monotonic(),
            sent=(
                args if request.args is None else request.args,
                kwargs if request.kwargs is None else request.kwargs,
            ),
        )

    @property
    def waited(self) -> float:
        """Seconds since this copy of the call first asked for its lock."""
        return self.runtime.redlock.clock.monotonic() - self.began_at

    def facts(self) -> dict[str, Any]:
        """Return the facts that each `policies.Situation` of the call has."""
        names = {"key": self.key, "task": self.task.name, "task_id": self.id}
        return {**names, "retries": self.request.retries}

    def follows(self, holder: Holder | None) -> bool:
        """Tell whether the holder with the same id has sent this call, as its next one.

        This call is its retry, or what it has replaced itself with, and no copy of it.
        """
        family = self.header.follows
        return holder is not None and family != "" and family_of(holder.base) == family

    def replaces(self, holder: Holder | None) -> bool:
        """Tell whether the holder has replaced itself with this call, among others.

        It has published them, as a chain or a group, and is about to end.
        """
        is_of_another = bool(getattr(self.request, "replaced_task_nesting", 0))
        parent = self.request.parent_id
        return is_of_another and holder is not None and holder.task_id == parent

    def register(self, keep: str) -> SuccessorRegister:
        """Return the entry of this call in the successor register of its key."""
        return SuccessorRegister(
            redlock=self.runtime.redlock,
            key=self.key,
            task=self.task.name,
            task_id=self.id,
            published=self.header.published,
            expires=self.expires(),
            keep=keep,
        )

    def other_has_ended(self, task_id: str) -> bool:
        """Tell whether a stored result says that another call of the task has ended.

        Where this call keeps no result, or it cannot be read, the answer is no.
        """
        return self.keeps_result() and has_ended(self.task, task_id)

    def keeps_result(self) -> bool:
        """Tell whether the result is stored: the call can override the task."""
        ignored = vars(self.request).get("ignore_result")
        return not (self.task.ignore_result if ignored is None else ignored)

    def expires(self) -> float:
        """Return when the call expires, in seconds since 1970; 0 for never."""
        if not self.request.expires:
            return 0.0
        zone = self.task.app.conf.timezone
        expires = maybe_make_aware(maybe_iso8601(self.request.expires), zone)
        return float(expires.timestamp())

    def with_own_message(self) -> Call:
        """Return the call with a copy of what was sent, which its body may change.

        A base class of the project can add an argument that cannot be copied.
        """
        if self.request.is_eager:
            return self
        return replace(self, sent=copy.deepcopy(self.sent))

    def log_fields(self, event: str, **facts: object) -> dict[str, object]:
        """Return the fields of a log line about this call."""
        return log_fields(
            event, task=self.task.name, task_id=self.id, key=self.key, **facts
        )

    def __str__(self) -> str:
        return f"{self.task.name}[{self.id}]"


def _refuse_broadcast(task: Task, exchange: str) -> None:
    if exchange and is_broadcast(task.app, exchange):
        raise ConfigurationError(
            f"{task.name} came from the Broadcast (fanout) exchange {exchange!r}, and "
            "did not run: each worker has a copy of this call, with the same id and "
            "key, and a lock would let one of them run. Publish it to a queue, or make "
            "it a plain task."
        )
