"""Spans for OpenTelemetry: ``pip install 'celery-redlock[otel]'``, and one call.

::

    from celery_redlock import tracing

    tracing.install(app)                # next to the app

==================  ============================================================
span                from when to when
==================  ============================================================
``redlock.wait``    from the first attempt to the grant, or to the decision of the
                    policy
``redlock.hold``    from the grant to the release; spans of the body are below it
==================  ============================================================

They are children of the task's span, which ``opentelemetry-instrumentation-celery``
makes. Without that, they continue the trace in the message, if there is one.

==========================  ====================================================
attribute                   meaning
==========================  ====================================================
``redlock.key``             the key of the lock; of several keys, one a line
``redlock.permit``          of keys with limits: the permits that it holds, and those
                            for a start, one a line
``redlock.limit``           how many permits the key has of which none was free
``redlock.outcome``         of a wait: ``granted``, or the name of the decision:
                            ``skip``, ``raise``, ``retry``, ``allow``
``redlock.fence``           the fence of the grant
``redlock.votes``           number of nodes that granted the lock; of a hold, that
                            confirmed its last renewal
``redlock.ttl``             seconds for which a grant or a renewal is valid
``redlock.holder``          the task id of the other holder
``redlock.reason``          why too few nodes answered; such a wait is an error
``celery.task_name``        the name of the task
``messaging.message.id``    the id of the task
==========================  ====================================================

A lost lock makes its hold an error, with an event ``redlock.lost`` at the instant at
which its validity ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, Status, StatusCode, TracerProvider

from celery_redlock import signals
from celery_redlock.app.observer import Observer, install_once
from celery_redlock.app.runtime import runtime_of
from celery_redlock.locks.lease import Lease, LeaseState

if TYPE_CHECKING:
    from celery import Task
    from opentelemetry.context import Context

    from celery_redlock.policies import Decision

__all__ = ["Tracing", "install"]

_NS = 1_000_000_000


def install(app: Any, *, tracer_provider: TracerProvider | None = None) -> Tracing:
    """Make spans for the locks of an app. A second call returns the first result.

    Args:
        app: The Celery app.
        tracer_provider: Receives the spans; by default the global provider, which may
            be set later, as it must be in the children of a prefork worker.
    """
    return install_once(app, Tracing, tracer_provider=tracer_provider)


class Tracing(Observer):
    """The spans of one app's locks, in this process and in its forked children."""

    def __init__(self, app: Any, *, tracer_provider: TracerProvider | None) -> None:
        super().__init__(app)
        self._tracer = trace.get_tracer("celery_redlock", None, tracer_provider)
        # By token: the span that is current while a lock is held, and what detaches it.
        self._holds: dict[str, tuple[Span, Any]] = {}
        self.listen(signals.lock_acquired, self._on_acquired)
        self.listen(signals.lock_conflict, self._on_conflict)
        self.listen(signals.lock_outage, self._on_outage)
        self.listen(signals.lock_released, self._on_released)

    # -- receivers -----------------------------------------------------------

    def _on_acquired(
        self, sender: Any, lease: Lease, task_id: str, waited: float, **_: object
    ) -> None:
        attributes = {
            **_attributes(sender, lease.wanted, task_id),
            **_permits(lease),
            "redlock.fence": lease.fence,
            "redlock.votes": lease.votes,
            "redlock.ttl": lease.ttl,
        }
        self._wait(sender, waited, {**attributes, "redlock.outcome": "granted"})
        parent = _parent(sender)
        span = self._tracer.start_span("redlock.hold", parent, attributes=attributes)
        attached = context.attach(trace.set_span_in_context(span, parent))
        self._holds[lease.token] = span, attached

    def _on_released(self, sender: Any, lease: Lease, **_: object) -> None:
        if lease.token not in self._holds:
            return
        span, attached = self._holds.pop(lease.token)
        span.set_attribute("redlock.votes", lease.votes)
        if lease.state is LeaseState.LOST:
            ago = runtime_of(sender.app).redlock.clock.monotonic() - lease.until
            lost_at = time.time_ns() - round(ago * _NS)
            span.add_event("redlock.lost", timestamp=lost_at)
            span.set_status(Status(StatusCode.ERROR, "the lock was lost"))
        context.detach(attached)
        span.end()

    def _on_conflict(
        self, sender: Any, conflict: Any, decision: Any, waited: float, **_: object
    ) -> None:
        if decision.keeps_trying(conflict):
            return  # the wait goes on
        attributes = _attributes(sender, conflict.key, conflict.task_id)
        if conflict.holder is not None:
            attributes["redlock.holder"] = conflict.holder.task_id
        if conflict.limit is not None:
            attributes["redlock.limit"] = conflict.limit.most
        self._wait(sender, waited, {**attributes, "redlock.outcome": decision.name})

    def _on_outage(
        self, sender: Any, outage: Any, decision: Decision, waited: float, **_: object
    ) -> None:
        attributes = {
            **_attributes(sender, outage.key, outage.task_id),
            "redlock.outcome": decision.name,
            "redlock.reason": outage.reason,
        }
        self._wait(sender, waited, attributes, error="too few nodes answered")

    def _wait(
        self, task: Task, waited: float, attributes: dict[str, Any], *, error: str = ""
    ) -> None:
        """Make the span of a wait that is over."""
        now = time.time_ns()
        span = self._tracer.start_span(
            "redlock.wait",
            _parent(task),
            attributes=attributes,
            start_time=now - round(waited * _NS),
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(now)


def _attributes(task: Task, key: str, task_id: str) -> dict[str, Any]:
    attributes = {"redlock.key": key, "celery.task_name": task.name}
    return {**attributes, "messaging.message.id": task_id} if task_id else attributes


def _permits(lease: Lease) -> dict[str, Any]:
    pairs = lease.choice.held + lease.choice.starts if lease.choice else []
    names = [name for _, name in pairs]
    return {"redlock.permit": "\n".join(names)} if names else {}


def _parent(task: Task) -> Context:
    """Return the context of the task's span, or else the context in its message."""
    here = context.get_current()
    if trace.get_current_span(here).get_span_context().is_valid:
        return here
    # The headers of a message are attributes of Celery's request.
    headers = {k: v for k, v in vars(task.request).items() if isinstance(v, str)}
    return propagate.extract(headers, here)
