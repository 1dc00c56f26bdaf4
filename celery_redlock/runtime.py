"""Settings, lock service and watchdog of an app, one of each per process.

Everything is made on first use: at decoration an app has no configuration yet,
and a process that only publishes needs no connection. What has been made
survives a fork: the child's copies begin anew, with connections and threads of
their own.

::

    worker starts ──► settings and options are checked; a mistake ends the worker
    worker is ready ─► nodes are asked for a vote: a wait begins now and not with
                       the first task, and the log says what is waited for
    child or worker ends ──► threads are ended, signals that are due are sent
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_redlock.announcer import Announcer
from celery_redlock.errors import ConfigurationError
from celery_redlock.locking import watchdog_of
from celery_redlock.masking import UnmaskedConf, mask
from celery_redlock.options import LockOptions, ResolvedOptions
from celery_redlock.settings import Settings

if TYPE_CHECKING:
    from celery_redlock.core.deployment import NodesReport
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.renewal import Watchdog

__all__ = ["Runtime", "runtime_of"]

log = logging.getLogger("celery_redlock.runtime")

_ATTRIBUTE = "_redlock_runtime"  # of the app
_MADE = "made"

_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()


class Runtime:
    """What the tasks of one app share.

    Args:
        app: The Celery app. Its configuration is read now.

    Attributes:
        settings: The app's ``redlock_*`` settings.
        announcer: Sends signals that arise in the watchdog's thread.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(self, app: Any) -> None:
        mask(app)
        self.settings = Settings.of(UnmaskedConf(app.conf))
        self.announcer = Announcer()
        self._service: dict[str, Redlock] = {}
        self._options: dict[str, ResolvedOptions] = {}
        _runtimes.add(self)

    @property
    def redlock(self) -> Redlock:
        """The lock service on the app's nodes.

        Raises:
            ConfigurationError: There are no nodes.
        """
        service = self._service.get(_MADE)
        if service is None:
            # Of two threads that come here at once one has made it for both.
            service = self._service.setdefault(_MADE, _redlock_from(self.settings))
        return service

    @property
    def watchdog(self) -> Watchdog:
        """What renews the leases of this process."""
        return watchdog_of(self.redlock)

    def options(self, task: str, options: LockOptions) -> ResolvedOptions:
        """Return a task's options with what was left open filled in.

        Raises:
            ConfigurationError: An option does not go with a setting.
        """
        resolved = self._options.get(task)
        if resolved is None:
            resolved = self._options[task] = options.resolve(self.settings, task)
        return resolved

    def use(self, redlock: Redlock) -> None:
        """Lock by this service instead of by one on the app's nodes. For tests."""
        self._service[_MADE] = redlock

    def stop(self) -> None:
        """End the threads. The next use starts them again."""
        for redlock in self._service.values():
            watchdog_of(redlock).stop()
        self.announcer.stop()


def _redlock_from(settings: Settings) -> Redlock:
    # Not where tasks are only published: the core is half of our import.
    from celery_redlock.core.redlock import Redlock  # noqa: PLC0415

    return Redlock(
        settings.nodes,
        ttl=settings.ttl,
        max_ttl=settings.max_ttl,
        node_timeout=settings.node_timeout,
        connect_timeout=settings.connect_timeout,
        prefix=settings.prefix,
        restart_guard=settings.restart_guard,
    )


def runtime_of(app: Any) -> Runtime:
    """Return the runtime of an app, made on first use.

    Raises:
        ConfigurationError: A setting is wrong.
    """
    app = getattr(app, "_get_current_object", lambda: app)()  # what a proxy stands for
    runtime: Runtime | None = vars(app).get(_ATTRIBUTE)
    return runtime or vars(app).setdefault(_ATTRIBUTE, Runtime(app))


# -- with the worker ------------------------------------------------------------


def _locking_tasks(app: Any) -> list[Any]:
    tasks = app.tasks.values()
    return [
        t for t in tasks if isinstance(getattr(t, "lock_options", None), LockOptions)
    ]


def _check_configuration(sender: Any, **_: Any) -> None:
    """End a worker that could run none of its tasks, and say what is wrong."""
    tasks = _locking_tasks(sender.app)
    try:
        for task in tasks:
            runtime = runtime_of(sender.app)
            runtime.options(task.name, task.lock_options)
            runtime.redlock  # noqa: B018  (building it checks the nodes)
    except ConfigurationError as error:
        # The sender of a signal would swallow any other kind of exception.
        raise SystemExit(f"celery-redlock: {error}") from error


def _look_at_nodes(sender: Any, **_: Any) -> None:
    """Have restarted nodes begin their wait now, and say once what it is for."""
    if not _locking_tasks(sender.app):
        return
    redlock = runtime_of(sender.app).redlock
    if not redlock.guard.enabled:
        log.warning(
            "redlock_restart_guard is off: a node that restarts empty votes at once. "
            "It can let a second holder in, and give out old fences."
        )
    _log_report(redlock.check())


def _log_report(report: NodesReport) -> None:
    ballot = report.ballot
    nodes, problems = len(ballot.labels), "; ".join(report.problems)
    if not problems:
        log.info("All %d nodes vote (%d are a quorum).", nodes, ballot.quorum)
    elif report.has_quorum:
        log.warning(
            "%d of %d nodes vote (%d are a quorum): %s.",
            ballot.granted,
            nodes,
            ballot.quorum,
            problems,
        )
    else:
        when = (
            "until that has changed"
            if report.waits is None
            else f"for {report.waits:.0f} s more"
        )
        log.error(
            "Only %d of %d nodes vote (%d are a quorum): %s. Tasks that need a lock do "
            "not run %s. (For a brand-new deployment, `celery -A proj redlock init`.)",
            ballot.granted,
            nodes,
            ballot.quorum,
            problems,
            when,
        )


def _stop_all(**_: Any) -> None:
    for runtime in list(_runtimes):
        runtime.stop()


signals.worker_init.connect(_check_configuration, weak=False)
signals.worker_ready.connect(_look_at_nodes, weak=False)
signals.worker_process_shutdown.connect(_stop_all, weak=False)
signals.worker_shutdown.connect(_stop_all, weak=False)
