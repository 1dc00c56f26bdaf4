"""Metrics for Prometheus: ``pip install 'celery-redlock[prometheus]'``, and one call.

::

    from celery_redlock import metrics

    metrics.install(app, port=9464)     # next to the app

Workers and beats of the app then answer scrapes on this port. The children of a prefork
worker count, so such a worker needs the multiprocess mode of prometheus_client: set
``PROMETHEUS_MULTIPROC_DIR`` to an empty folder before the worker starts.

This file connects and serves. Then read ``instruments``, the counters and histograms,
which receivers of ``celery_redlock.signals`` update in each process that locks; and
``collector``, the gauges of nodes and leadership, which are read from the nodes at each
scrape. Without ``install`` nothing is imported, connected or counted.

Exports ``install`` and the class of its result; and what the page of locks
(``celery_redlock.web``) answers scrapes with: ``StateCollector`` and ``scraped``.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery import signals as celery_signals
from celery.concurrency import get_implementation
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    start_http_server,
    values,
)
from prometheus_client.multiprocess import MultiProcessCollector

from celery_redlock import signals
from celery_redlock.app.observer import Observer, install_once, installed
from celery_redlock.app.runtime import runtime_of
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import ConfigurationError
from celery_redlock.metrics.collector import StateCollector
from celery_redlock.metrics.instruments import OTHER_VIEW, instruments_in
from celery_redlock.wire.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from celery_redlock.members.restart_guard import RestartGuard
    from celery_redlock.wire.quorum import Vote
    from celery_redlock.wire.requests import ScriptRequest

__all__ = ["Metrics", "StateCollector", "install", "scraped"]

log = logging.getLogger(__name__)

_EVERYWHERE = "0.0.0.0"  # noqa: S104  (as prometheus_client does it)


def install(
    app: Celery,
    *,
    port: int | None = None,
    host: str = _EVERYWHERE,
    registry: CollectorRegistry = REGISTRY,
) -> Metrics:
    """Count and time the locks of an app. A second call returns the first result.

    Args:
        app: The Celery app.
        port: The port of the main process of a worker, and of a beat; by default they
            do not listen. If the port is in use, the worker logs an error and runs
            without it. So give each worker of a machine its own port. The beat of a
            worker (``-B``) is one of its children, and leaves the port to it.
        host: The address to listen on; all addresses by default.
        registry: The registry of the metrics.

    Returns:
        The installed metrics. Their ``registry`` is for an endpoint of your own.
    """
    return install_once(app, Metrics, port=port, host=host, source=registry)


class Metrics(Observer):
    """The metrics of one app, in this process and in its forked children.

    Attributes:
        server: The HTTP server for scrapes in this process, or None.
    """

    def __init__(
        self, app: Celery, *, port: int | None, host: str, source: CollectorRegistry
    ) -> None:
        super().__init__(app)
        self.server: Any = None
        self._port, self._host = port, host
        self._source = source
        self._instruments = count = instruments_in(source)
        self._collector = StateCollector(self.app)
        self._broadcast: Broadcast | None = None
        for signal, receiver in (
            (signals.lock_acquired, count.on_acquired),
            (signals.lock_released, count.on_released),
            (signals.lock_conflict, count.on_conflict),
            (signals.lock_outage, count.on_outage),
            (signals.lock_cancelled, count.on_cancelled),
            (signals.publish_deduplicated, count.on_deduplicated),
            (signals.lock_lost, count.on_lost),
            (signals.lock_renewed, count.on_renewed),
            (signals.leader_elected, count.on_elected),
            (signals.leader_resigned, count.on_resigned),
            # Any of these may be the first signal after the settings are known.
            (signals.lock_acquired, self._observe_nodes),
            (signals.lock_conflict, self._observe_nodes),
            (signals.lock_outage, self._observe_nodes),
            (celery_signals.worker_init, self._observe_nodes),
            (celery_signals.beat_init, self._observe_nodes),
            (celery_signals.worker_ready, self._warn_of_children),
            (celery_signals.worker_ready, self._serve),
            (celery_signals.beat_init, self._serve_beat),
            (celery_signals.worker_shutdown, self._stop),
        ):
            self.listen(signal, receiver)
        self.listen_to_all(celery_signals.worker_process_init, self._leave_to_parent)

    @property
    def registry(self) -> CollectorRegistry:
        """A new registry with all metrics, for an endpoint of your own.

        In multiprocess mode it has the metrics of all processes that share the folder.
        """
        registry = self.counted
        registry.register(self._collector)
        return registry

    @property
    def counted(self) -> CollectorRegistry:
        """A new registry with the counters and histograms, and without the gauges."""
        registry = CollectorRegistry()
        if _is_shared():
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        else:
            registry.register(self._source)  # a registry is a collector, too
        return registry

    def uninstall(self) -> None:
        """Stop counting and serving. The counts stay."""
        super().uninstall()
        if self._broadcast is not None:
            self._broadcast.observer = None
            self._broadcast = None
        self._stop()

    # -- nodes -----------------------------------------------------------------

    def _observe_nodes(self, **_: object) -> None:
        """Observe the answers of the nodes, once the settings are known."""
        if self._broadcast is not None:
            return
        try:
            redlock = runtime_of(self.app).redlock
        except ConfigurationError:
            return  # a worker with locks ends with this error; one without may run
        if isinstance(redlock.transport, Broadcast):
            self._broadcast = redlock.transport
            observer = partial(self._observer, redlock.transport, redlock.guard)
            redlock.transport.observer = observer

    def _observer(
        self, broadcast: Broadcast, guard: RestartGuard, request: ScriptRequest
    ) -> Callable[[int, Vote], None]:
        labels = request.ballot.labels
        asked_at = SYSTEM_CLOCK.monotonic()

        def on_vote(index: int, vote: Vote) -> None:
            try:
                seconds = SYSTEM_CLOCK.monotonic() - asked_at
                # Without a caller that waits, a reply lies there until the next look.
                is_known = request.asked_by or broadcast.blind_for < seconds / 2
                latency = seconds if is_known else None
                answer = OTHER_VIEW if guard.was_unknown(vote) else None
                self._instruments.on_answer(labels[index], vote, latency, answer)
            except Exception:
                # The disk may be full. The vote itself is not affected.
                log.exception("An answer of %s was not counted.", labels[index])

        return on_vote

    # -- serving ---------------------------------------------------------------

    def _warn_of_children(self, sender: Any, **_: object) -> None:
        prefork = get_implementation("prefork")
        beat = getattr(sender.controller, "beat", None)
        if (beat or isinstance(sender.pool, prefork)) and not _is_shared():
            log.warning(
                "PROMETHEUS_MULTIPROC_DIR was not set when prometheus_client was "
                "imported, so the counts of this worker's children are not visible. "
                "Set it to an empty folder before the worker starts."
            )

    def _serve_beat(self, **_: object) -> None:
        """Serve, unless this beat is a child of a worker, which serves at the port."""
        if getattr(current_process(), "_parent_pid", None) is None:
            self._serve()

    def _serve(self, **_: object) -> None:
        if self._port is None or self.server is not None:
            return
        where = f"{self._host}:{self._port}"
        try:
            self.server = start_http_server(self._port, self._host, self.registry)[0]
        except (OSError, ValueError) as error:  # ValueError: the folder does not exist
            log.error("The metrics are not served at %s: %s.", where, error)  # noqa: TRY400  (it says all)
        else:
            log.info("The metrics are served at http://%s/metrics.", where)

    def _leave_to_parent(self, **_: object) -> None:
        """Close the inherited socket in a child, which may outlive its parent."""
        if self.server is not None:
            self.server.socket.close()
            self.server = None

    def _stop(self, **_: object) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self._collector.close()


def scraped(app: Celery | None, collector: StateCollector) -> CollectorRegistry:
    """Return what a scrape of a page of locks finds, with the gauges of a collector.

    If no metrics are installed in the app, nothing is counted.
    """
    found = installed(app, Metrics) if app is not None else None
    registry = found.counted if found else CollectorRegistry()
    registry.register(collector)
    return registry


def _is_shared() -> bool:
    """Tell whether the processes of a worker count in shared files."""
    return bool(getattr(values.ValueClass, "_multiprocess", False))
