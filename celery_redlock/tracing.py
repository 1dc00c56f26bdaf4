"""Spans for OpenTelemetry: ``pip install 'celery-redlock[otel]'``, and one call.

::

    from celery_redlock import tracing

    tracing.install(app)                # beside the app

==================  ============================================================
span                from when to when
==================  ============================================================
``redlock.wait``    from wanting the lock to having it, or to what is done instead
``redlock.hold``    from taking the lock to giving it back; what the body does is
                    below it
==================  ============================================================

They belong to the task's span, which ``opentelemetry-instrumentation-celery`` makes.
Without it they continue the trace that the message carries, if it carries one.

==========================  ====================================================
attribute                   what it is
==========================  ====================================================
``redlock.key``             the name that is locked
``redlock.outcome``         of a wait: ``granted``, or what was decided: ``skip``,
                            ``raise``, ``retry``, ``run``
``redlock.fence``           of the grant
``redlock.votes``           how many nodes granted it; of a hold, at its last
                            renewal
``redlock.ttl``             seconds for which each renewal sets it
``redlock.holder``          who has it instead: a task id
``redlock.reason``          why too few nodes answered; such a wait is an error
``celery.task_name``        the task
``messaging.message.id``    the task's id
==========================  ====================================================

A lock that is lost makes an error of its hold, with an event ``redlock.lost`` at the
instant at which its validity ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context, propagate, trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Status, StatusCode

from celery_redlock import signals
from celery_redlock.core.lease import LeaseState
from celery_redlock.observing import (
    Observer,
    goes_on_waiting,
    install_once,
    word_of,
)
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from celery_redlock.core.lease import Lease

__all__ = ["Tracing", "install"]

_NS = 1_000_000_000


def install(app: Any, *, tracer_provider: TracerProvider | None = None) -> Tracing:
    """Make spans of the locks of an app. Twice is harmless: the first one stays.

    Args:
        app: The Celery app.
        tracer_provider: Where spans go; the global one by default, also one that is
            set later, as it must be in the children of a prefork worker.
    """
    return install_once(app, Tracing, tracer_provider=tracer_provider)


class _Hold(NamedTuple):
    """A span that is current while a lock is held."""

    span: Span
    attached: Any


class Tracing(Observer):
    """The spans of one app's locks, in this process and those that it forks."""

    def __init__(self, app: Any, *, tracer_provider: TracerProvider | None) -> None:
        super().__init__(app)
        self._tracer = trace.get_tracer("celery_redlock", None, tracer_provider)
        self._holds: dict[str, _Hold] = {}  # by token
        self.listen(signals.lock_acquired, self._on_acquired)
        self.listen(signals.lock_conflict, self._on_conflict)
        self.listen(signals.lock_outage, self._on_outage)
        self.listen(signals.lock_released, self._on_released)

    # -- receivers -----------------------------------------------------------

    def _on_acquired(
        self, sender: Any, lease: Lease, task_id: str, waited: float, **_: Any
    ) -> None:
        about = {
            **_about(sender, lease.key, task_id),
            "redlock.fence": lease.fence,
            "redlock.votes": lease.votes,
            "redlock.ttl": lease.ttl,
        }
        self._wait(sender, waited, {**about, "redlock.outcome": "granted"})
        parent = _parent(sender)
        span = self._tracer.start_span("redlock.hold", parent, attributes=about)
        attached = context.attach(trace.set_span_in_context(span, parent))
        self._holds[lease.token] = _Hold(span, attached)

    def _on_released(self, sender: Any, lease: Lease, **_: Any) -> None:
        hold = self._holds.pop(lease.token, None)
        if hold is None:
            return
        hold.span.set_attribute("redlock.votes", lease.votes)
        if lease.state is LeaseState.LOST:
            ago = runtime_of(sender.app).redlock.clock.monotonic() - lease.until
            lost_at = time.time_ns() - round(ago * _NS)
            hold.span.add_event("redlock.lost", timestamp=lost_at)
            hold.span.set_status(Status(StatusCode.ERROR, "the lock was lost"))
        context.detach(hold.attached)
        hold.span.end()

    def _on_conflict(
        self, sender: Any, conflict: Any, decision: object, waited: float, **_: Any
    ) -> None:
        if goes_on_waiting(decision):
            return  # it is not over
        about = _about(sender, conflict.key, conflict.task_id)
        if conflict.holder is not None:
            about["redlock.holder"] = conflict.holder.task_id
        self._wait(sender, waited, {**about, "redlock.outcome": word_of(decision)})

    def _on_outage(
        self, sender: Any, outage: Any, decision: object, waited: float, **_: Any
    ) -> None:
        about = {
            **_about(sender, outage.key, outage.task_id),
            "redlock.outcome": word_of(decision),
            "redlock.reason": outage.reason,
        }
        self._wait(sender, waited, about, error="too few nodes answered")

    def _wait(
        self, task: Any, waited: float, about: dict[str, Any], *, error: str = ""
    ) -> None:
        """Make the span of a wait, now that it is over."""
        now = time.time_ns()
        span = self._tracer.start_span(
            "redlock.wait",
            _parent(task),
            attributes=about,
            start_time=now - round(waited * _NS),
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(now)


def _about(task: Any, key: str, task_id: str) -> dict[str, Any]:
    about = {"redlock.key": key, "celery.task_name": task.name}
    return {**about, "messaging.message.id": task_id} if task_id else about


class _OfRequest(Getter[Any]):
    """Reads the headers of a message: Celery makes attributes of its request."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        """Return a header."""
        value = getattr(carrier, key, None)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Any) -> list[str]:
        """Return the names of all headers."""
        return list(vars(carrier))


_OF_REQUEST = _OfRequest()


def _parent(task: Any) -> Context:
    """Return the context of the task's span, or else that of its message."""
    here = context.get_current()
    if trace.get_current_span(here).get_span_context().is_valid:
        return here
    return propagate.extract(task.request, here, _OF_REQUEST)
