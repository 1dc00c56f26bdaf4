"""Tell the nodes of a call that was published, for policies that order the calls.

``buffer_one`` and ``cancel_running`` let the latest or the first of the calls run that
were published. The publisher tells the nodes when the message is in the broker: one
request that it does not wait for. Each node numbers the calls in the order in which it
hears of them; see ``line.successors``. So the order does not depend on the
publishers' clocks, and a call that finds its lock free knows whether a later one waits.
Under ``cancel_running`` the same request asks the running call to end.

=================================  ==================================================
not announced                      why
=================================  ==================================================
with a countdown or an eta         Calls that may run now do not end because of a call
                                   that runs in an hour.
``self.retry()``, republished      It is no newer than the call that it repeats.
by name (``app.send_task``)        This module is not called.
while the nodes are not set        Nothing can be told. The call is published.
=================================  ==================================================

Such a call has the time of its first publishing instead of a number.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import ConfigurationError
from celery_redlock.task.header import HEADER
from celery_redlock.task.message import SentMessage, watched
from celery_redlock.task.publishing import seconds_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Task

log = logging.getLogger(__name__)

# Nodes remember for a minute that a call has ended. A publisher that was suspended
# for longer must not announce a call that has run in the meantime.
_LATEST = 10.0  # seconds
_DELAYED = ("countdown", "eta", "retries")


def send_announced(
    task: Task,
    key: str,
    arguments: tuple[Any, Any],
    send: Callable[..., Any],
    /,
    **options: Any,
) -> Any:
    """Send a call with these options of ``apply_async``, and tell the nodes of it."""
    began = SYSTEM_CLOCK.monotonic()
    message = SentMessage(task, key, arguments, options.get("serializer"))
    with watched(message):
        result = send(**options)
    if not message.id or not message.key or is_delayed(options):
        return result
    if SYSTEM_CLOCK.monotonic() - began < _LATEST:
        _announce(task, message.key, message.id, options)
    return result


def is_delayed(options: Mapping[str, Any]) -> bool:
    """Tell whether a call is not to run now, or was published before."""
    ours = (options.get("headers") or {}).get(HEADER) or {}
    return "deferred" in ours or any(options.get(name) for name in _DELAYED)


def _announce(task: Task, key: str, task_id: str, options: Mapping[str, Any]) -> None:
    # Only publishers of such tasks pay for this import.
    from celery_redlock.line.successors import note_published  # noqa: PLC0415

    try:
        runtime = runtime_of(task.app)
        resolved = runtime.options(task.name, task.lock_options)
        redlock = runtime.redlock
    except ConfigurationError as error:
        # The message is sent: an error would say that it is not.
        text = "%s[%s] is published without an order: %s"
        log.warning(text, task.name, task_id, error)
        return
    left = seconds_until(task, options.get("expires", task.expires))
    note_published(
        redlock,
        key,
        task.name,
        task_id,
        ttl=resolved.task.claim_seconds,
        expires=SYSTEM_CLOCK.wall() + left if left is not None else 0.0,
        replaces=resolved.task.replaces,
    )
    if redlock.transport.has_pending:  # the first request waits for its connections
        runtime.watchdog.resend_releases()
