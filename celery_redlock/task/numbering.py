"""Give a call its place in the line of its key before it is published: ``in_order``.

::

    message is made ──► number_in_backlog ──► its header carries the number ──► broker
                              │
                              └─► too few nodes answer: published without a place

The call then has a place before a worker can have its message, or that of a later call.
If it is not sent in the end, it leaves. A call without a place gets one when a worker
asks for its lock, by the time of its publishing: calls with a countdown or an eta,
retries, and calls that are sent by name.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.log_limit import LogLimit
from celery_redlock.errors import ConfigurationError
from celery_redlock.line.backlog import MARGIN, leave_backlog, number_in_backlog
from celery_redlock.task.announcement import is_delayed
from celery_redlock.task.header import with_fields
from celery_redlock.task.message import SentMessage, watched
from celery_redlock.task.publishing import seconds_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

log = logging.getLogger(__name__)

_TOO_FEW = (
    "%s[%s] is published without a place in its line, because too few nodes answered: "
    "a later call may run before it. (%d more such lines were held back.)"
)
_limit = LogLimit()


def send_in_order(
    task: Task,
    key: str,
    arguments: tuple[Any, Any],
    send: Callable[..., Any],
    /,
    **options: Any,
) -> Any:
    """Send a call with these options of ``apply_async``, with a place in its line."""
    if is_delayed(options) or task.app.conf.task_always_eager:
        return send(**options)
    place: list[str] = []

    def number(message: SentMessage) -> None:
        place[:] = message.key, message.id
        if all(place):
            _number(task, message)

    message = SentMessage(task, key, arguments, options.get("serializer"), number)
    try:
        with watched(message):
            result = send(**options)
    except BaseException:
        _leave(task, place)
        raise
    # A receiver of a signal can change the call once more, after it was numbered.
    if place != [message.key, message.id]:
        _leave(task, place)
    return result


def _number(task: Task, message: SentMessage) -> None:
    """Let a call join the line, and write its number into the header of its message."""
    key, task_id = message.key, message.id
    try:
        runtime = runtime_of(task.app)
        margin = runtime.options(task.name, task.lock_options).task.claim_seconds
        # RabbitMQ discards an expired message itself, and no process sees that.
        if (left := seconds_until(task, message.headers.get("expires"))) is not None:
            margin = min(margin, max(0.0, left) + MARGIN)
        least = round(SYSTEM_CLOCK.wall() * 1e6)
        number = number_in_backlog(
            runtime.redlock, key, task_id, least=least, margin=margin
        )
    except ConfigurationError as error:
        text = "%s[%s] is published without a place in its line: %s"
        log.warning(text, task.name, task_id, error)
        return
    if number is None:
        extra = log_fields("unnumbered", task=task.name, task_id=task_id, key=key)
        if (held_back := _limit.take()) is not None:
            log.warning(_TOO_FEW, task.name, task_id, held_back, extra=extra)
        return
    place = {"published": number, "line": (key, margin)}
    message.headers.update(with_fields(message.headers, **place))


def _leave(task: Task, place: list[str]) -> None:
    if place and all(place):
        leave_backlog(runtime_of(task.app).redlock, *place, in_order=True)
