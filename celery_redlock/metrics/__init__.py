"""Metrics for Prometheus: ``pip install 'celery-redlock[prometheus]'``, and one call.

::

    from celery_redlock import metrics

    metrics.install(app, port=9464)     # beside the app

Workers and beats of the app then answer on this port. A prefork worker counts in
its children, so it needs what prometheus_client calls multiprocess mode: set
``PROMETHEUS_MULTIPROC_DIR`` to an empty folder before the worker starts.

=====================  ========================================================
what is there          see
=====================  ========================================================
counts and durations   ``metrics.instruments``: kept by receivers of
                       ``celery_redlock.signals``, in whatever process locks
nodes and leadership   ``metrics.standing``: asked for when scraped
=====================  ========================================================

Where it is not installed nothing is imported, counted or received.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

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
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.fanout import Fanout
from celery_redlock.errors import ConfigurationError
from celery_redlock.metrics.instruments import instruments_in
from celery_redlock.metrics.standing import StandingCollector
from celery_redlock.observing import Observer, install_once
from celery_redlock.runtime import runtime_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.ballot import Vote
    from celery_redlock.core.question import Question

__all__ = ["Metrics", "install"]

log = logging.getLogger("celery_redlock.metrics")

_EVERYWHERE = "0.0.0.0"  # noqa: S104  (as prometheus_client does it)


def install(
    app: Any,
    *,
    port: int | None = None,
    host: str = _EVERYWHERE,
    registry: CollectorRegistry = REGISTRY,
) -> Metrics:
    """Count and time the locks of an app. Twice is harmless: the first one stays.

    Args:
        app: The Celery app.
        port: Where the main process of a worker, and a beat, answer a scrape; by
            default they do not. A port that is taken is an error in the log, and
            the worker runs without: give each worker of a machine its own.
        host: The address to listen on; all of the machine by default.
        registry: Where the metrics are.

    Returns:
        What was installed; its ``registry`` is for an endpoint of your own.
    """
    return install_once(app, Metrics, port=port, host=host, source=registry)


class Metrics(Observer):
    """The metrics of one app, in this process and those that it forks.

    Attributes:
        app: The app.
        server: What answers scrapes in this process, while it does.
    """

    def __init__(
        self, app: Any, *, port: int | None, host: str, source: CollectorRegistry
    ) -> None:
        super().__init__(app)
        self.server: Any = None
        self._port, self._host = port, host
        self._source = source
        self._instruments = count = instruments_in(source)
        self._standing = StandingCollector(self.app)
        self._fanout: Fanout | None = None
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
            # Any of these may be the first to show that the settings are known.
            (signals.lock_acquired, self._observe_nodes),
            (signals.lock_conflict, self._observe_nodes),
            (signals.lock_outage, self._observe_nodes),
            (celery_signals.worker_init, self._observe_nodes),
            (celery_signals.beat_init, self._observe_nodes),
            (celery_signals.worker_ready, self._warn_of_children),
            (celery_signals.worker_ready, self._serve),
            (celery_signals.beat_init, self._serve),
            (celery_signals.worker_shutdown, self._stop),
        ):
            self.listen(signal, receiver)
        self.listen_to_all(celery_signals.worker_process_init, self._leave_to_parent)

    @property
    def registry(self) -> CollectorRegistry:
        """Return a new registry with all metrics, to serve in your own way.

        In multiprocess mode it has those of all processes that share the folder.
        """
        registry = CollectorRegistry()
        if _is_shared():
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        else:
            registry.register(self._source)  # it can be collected from
        registry.register(self._standing)
        return registry

    def uninstall(self) -> None:
        """Count no more and answer no more. What was counted stays."""
        super().uninstall()
        if self._fanout is not None:
            self._fanout.observer = None
            self._fanout = None
        self._stop()

    # -- nodes -----------------------------------------------------------------

    def _observe_nodes(self, **_: Any) -> None:
        """Be told what nodes answer. Settings need not be known before that."""
        if self._fanout is not None:
            return
        try:
            transport = runtime_of(self.app).redlock.transport
        except ConfigurationError:
            return  # a worker ends by it, and says so; one without locks need not
        if isinstance(transport, Fanout):
            self._fanout = transport
            transport.observer = self._observer

    def _observer(self, question: Question) -> Callable[[int, Vote], None]:
        labels = question.ballot.labels
        asked_at = SYSTEM_CLOCK.monotonic()

        def on_vote(index: int, vote: Vote) -> None:
            try:
                seconds = SYSTEM_CLOCK.monotonic() - asked_at
                self._instruments.on_answer(labels[index], vote, seconds)
            except Exception:
                # A full disk, say: the vote counts all the same.
                log.exception("An answer of %s was not counted.", labels[index])

        return on_vote

    # -- serving ---------------------------------------------------------------

    def _warn_of_children(self, sender: Any, **_: Any) -> None:
        prefork = get_implementation("prefork")
        if isinstance(sender.pool, prefork) and not _is_shared():
            log.warning(
                "PROMETHEUS_MULTIPROC_DIR was not set when prometheus_client was "
                "imported: what the children of this worker count is not seen. Set it "
                "to an empty folder before the worker starts."
            )

    def _serve(self, **_: Any) -> None:
        if self._port is None or self.server is not None:
            return
        where = f"{self._host}:{self._port}"
        try:
            self.server = start_http_server(self._port, self._host, self.registry)[0]
        except (OSError, ValueError) as error:  # ValueError: there is no such folder
            log.error("The metrics are not served at %s: %s.", where, error)  # noqa: TRY400  (it says all)
        else:
            log.info("The metrics are served at http://%s/metrics.", where)

    def _leave_to_parent(self, **_: Any) -> None:
        """Close what a child has inherited: it would outlive its parent's port."""
        if self.server is not None:
            self.server.socket.close()
            self.server = None

    def _stop(self, **_: Any) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self._standing.close()


def _is_shared() -> bool:
    """Tell whether the processes of a worker count in common files."""
    return bool(getattr(values.ValueClass, "_multiprocess", False))
