"""Tell the nodes of a call that is published, for policies that order the calls.

``buffer_one`` and ``cancel_running`` let the latest or the first of the calls run that
were published. The publisher tells the nodes when the message is in the broker: one
request that it does not wait for. Each node numbers the calls in the order in which it
hears of them; see ``line.successors``. So the order does not depend on the
publishers' clocks, and a call that finds its lock free knows whether a later one waits.
Under ``cancel_running`` the same request asks the running call to end.

With ``in_order`` a call gets its place in the line of its key before it is sent::

    message is made ──► number_in_backlog ──► its header carries the number ──► broker
                              │
                              └─► too few nodes answer: published without a place

So it has a place before a worker can have its message, or that of a later call. If it
is not sent in the end, it leaves.

=================================  ==================================================
not told                           why
=================================  ==================================================
with a countdown or an eta         Calls that may run now do not end because of a call
                                   that runs in an hour.
``self.retry()``, republished      It is no newer than the call that it repeats.
by name (``app.send_task``)        This module is not called.
while the nodes are not set        Nothing can be told. The call is published.
a second time for one slot         The first message has begun, and this one is skipped:
                                   no call may end for it.
=================================  ==================================================

Such a call has the time of its first publishing instead of a number. With ``in_order``
it gets a place when a worker asks for its lock.
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
from celery_redlock.line.successors import note_published
from celery_redlock.records.beat_slots import mark_slot
from celery_redlock.task.header import TaskHeader, with_fields
from celery_redlock.task.publishing import seconds_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.task.message import SentMessage


log = logging.getLogger(__name__)

# Nodes remember for a minute that a call has ended. A publisher that was suspended
# for longer must not announce a call that has run in the meantime.
_LATEST = 10.0  # seconds
_DELAYED = ("countdown", "eta", "retries")
_TOO_FEW = (
    "%s[%s] is published without a place in its line, because too few nodes answered: "
    "a later call may run before it.%s"
)
_limit = LogLimit()


def _is_delayed(options: Mapping[str, Any]) -> bool:
    """Tell whether a call is not to run now, or was published before."""
    return any(options.get(name) for name in _DELAYED)


def _log_unordered(message: SentMessage, error: ConfigurationError) -> None:
    # The message is sent: an error would say that it is not.
    text = "%s[%s] is published without an order: %s"
    log.warning(text, message.task.name, message.id, error)


# -- after it is sent: buffer_one, cancel_running ------------------------------------


def send_announced(
    message: SentMessage, send: Callable[..., Any], /, **options: Any
) -> Any:
    """Send a call with these options of ``apply_async``, and tell the nodes of it."""
    began = SYSTEM_CLOCK.monotonic()
    result = send(**options)
    is_recent = SYSTEM_CLOCK.monotonic() - began < _LATEST
    if message.id and message.key and is_recent and not _is_delayed(options):
        _announce(message, options)
    return result


def _announce(message: SentMessage, options: Mapping[str, Any]) -> None:
    task = message.task
    try:
        runtime = runtime_of(task.app)
        resolved = runtime.options(task)
        redlock = runtime.redlock
    except ConfigurationError as error:
        _log_unordered(message, error)
        return
    if _is_sent_twice(redlock, message):
        return
    left = seconds_until(task, options.get("expires", task.expires))
    note_published(
        redlock,
        message.key,
        task.name,
        message.id,
        ttl=resolved.task.claim_seconds,
        expires=SYSTEM_CLOCK.wall() + left if left is not None else 0.0,
        replaces=resolved.task.replaces,
    )


def _is_sent_twice(redlock: Redlock, message: SentMessage) -> bool:
    """Tell whether beat has sent a slot again whose first message has begun.

    The second message is skipped, so no call may end for it. The header of a message
    that a task has sent has the slot of that task, if it has one.
    """
    slot = TaskHeader.read(message.headers).slot
    if not slot or message.headers.get("parent_id"):
        return False
    return mark_slot(redlock, slot, message.id, only_looks=True) is not None


# -- before it is sent: in_order -----------------------------------------------------


def send_in_order(
    message: SentMessage, send: Callable[..., Any], /, **options: Any
) -> Any:
    """Send a call with these options of ``apply_async``, with a place in its line."""
    if _is_delayed(options) or message.task.app.conf.task_always_eager:
        return send(**options)
    joined: list[tuple[Redlock, str, str]] = []

    def number() -> None:
        if message.key and message.id:
            _number(message, joined)

    message.when_made.append(number)
    sent: tuple[str, str] | None = None
    try:
        result = send(**options)
        sent = message.key, message.id
    finally:
        for redlock, key, task_id in joined:
            # A receiver of a signal can change the call after it was numbered.
            if (key, task_id) != sent:
                leave_backlog(redlock, key, task_id, in_order=True)
    return result


def _number(message: SentMessage, joined: list[tuple[Redlock, str, str]]) -> None:
    """Let a call join the line, and write its number into the header of its message."""
    task, key, task_id = message.task, message.key, message.id
    try:
        runtime = runtime_of(task.app)
        margin = runtime.options(task).task.claim_seconds
        # RabbitMQ discards an expired message itself, and no process sees that.
        if (left := seconds_until(task, message.headers.get("expires"))) is not None:
            margin = min(margin, max(0.0, left) + MARGIN)
        least = round(SYSTEM_CLOCK.wall() * 1e6)
        joined.append((runtime.redlock, key, task_id))
        number = number_in_backlog(
            runtime.redlock, key, task_id, least=least, margin=margin
        )
    except ConfigurationError as error:
        _log_unordered(message, error)
        return
    if number is None:
        extra = log_fields("unnumbered", task=task.name, task_id=task_id, key=key)
        if (held_back := _limit.take()) is not None:
            others = held_back and f" ({held_back} more such lines were held back.)"
            log.warning(_TOO_FEW, task.name, task_id, others or "", extra=extra)
        return
    place = {"published": number, "line": (key, margin)}
    message.headers.update(with_fields(message.headers, **place))
