"""Settings, lock service and watchdog of an app, one of each per process.

Everything is made on first use: at decoration an app has no configuration yet,
and a process that only publishes needs no connection. What has been made
survives a fork: the child's copies begin anew, with connections and threads of
their own.

::

    worker starts ──► settings and options are checked; a mistake ends the worker
    worker is ready ─► nodes are asked for a vote: a wait begins now and not with
                       the first task, and the log says what is waited for; what
                       else `doctor` finds follows when it has looked
    child or worker ends ──► threads are ended, signals that are due are sent
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_redlock.announcer import Announcer
from celery_redlock.errors import ConfigurationError
from celery_redlock.locking import watchdog_of
from celery_redlock.logs import about
from celery_redlock.masking import UnmaskedConf, mask
from celery_redlock.options import LockOptions, ResolvedOptions
from celery_redlock.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.deployment import NodesReport
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.renewal import Watchdog

__all__ = ["Runtime", "instead", "runtime_of"]

log = logging.getLogger("celery_redlock.runtime")

_ATTRIBUTE = "_redlock_runtime"  # of the app
_MADE = "made"

_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()
_instead: list[Callable[[Any], Runtime]] = []  # filled by tests alone


class Runtime:
    """What the tasks of one app share.

    Args:
        app: The Celery app. Its configuration is read now.
        **defaults: Settings for an app that does not have them; for tests.

    Attributes:
        settings: The app's ``redlock_*`` settings.
        announcer: Sends signals that arise in the watchdog's thread.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(self, app: Any, **defaults: Any) -> None:
        mask(app)
        self.settings = Settings.of(UnmaskedConf(app.conf), **defaults)
        self.announcer = Announcer()
        self._service: dict[str, Redlock] = {}
        self._options: dict[str, ResolvedOptions] = {}
        self._waiters: set[str] = set()
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

    def warn_of_waiting(self, task: str) -> None:
        """Say, once for each task, what it costs that its calls wait."""
        if task in self._waiters:
            return
        self._waiters.add(task)
        log.warning(
            "Calls of %s may wait for their lock (on_conflict: wait). One that waits "
            "occupies a slot of the worker and does nothing there: as many of them as "
            "there are slots keep all other tasks out. Where that may happen, use "
            "'retry' or 'buffer_one', which wait in the queue.",
            task,
            extra=about("waits-in-a-slot", task=task),
        )

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
    if _instead:
        return _instead[-1](app)
    runtime: Runtime | None = vars(app).get(_ATTRIBUTE)
    return runtime or vars(app).setdefault(_ATTRIBUTE, Runtime(app))


@contextmanager
def instead(make: Callable[[Settings], Redlock], **defaults: Any) -> Iterator[None]:
    """Let all apps of this process lock by what ``make`` returns. For tests.

    While the block runs they have other runtimes; afterwards all is as before.

    Args:
        make: Returns the lock service for an app's settings.
        **defaults: Settings for apps that do not have them, such as ``nodes``.
    """
    made: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()
    turn = threading.Lock()

    def find(app: Any) -> Runtime:
        with turn:
            if app not in made:
                made[app] = Runtime(app, **defaults)
                made[app].use(make(made[app].settings))
            return made[app]

    _instead.append(find)
    try:
        yield
    finally:
        _instead.remove(find)
        for runtime in made.values():
            runtime.stop()


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
    """Have restarted nodes begin their wait now, and say once what is wrong."""
    tasks = _locking_tasks(sender.app)
    if not tasks:
        return
    for task in tasks:
        if task.lock_options.waits:
            runtime_of(sender.app).warn_of_waiting(task.name)
    # Only a worker pays for the import of all that can be found.
    from celery_redlock.diagnostics import (  # noqa: PLC0415
        ABOUT_VOTES,
        log_diagnosis,
    )

    redlock = runtime_of(sender.app).redlock
    if not redlock.guard.enabled:
        log.warning(
            "redlock_restart_guard is off: a node that restarts empty votes at once. "
            "It can let a second holder in, and give out old fences.",
            extra=about("guard-off"),
        )
    _log_report(redlock.check())
    log_diagnosis(redlock, sender.app, besides=ABOUT_VOTES | {"guard-off"})


def _log_report(report: NodesReport) -> None:
    ballot = report.ballot
    nodes, problems = len(ballot.labels), "; ".join(report.problems)
    fields = about("votes", votes=ballot.granted, nodes=nodes, quorum=ballot.quorum)
    if not problems:
        text = "All %d nodes vote (%d are a quorum)."
        log.info(text, nodes, ballot.quorum, extra=fields)
    elif report.has_quorum:
        log.warning(
            "%d of %d nodes vote (%d are a quorum): %s.",
            ballot.granted,
            nodes,
            ballot.quorum,
            problems,
            extra=fields,
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
            extra=fields,
        )


def _stop_all(**_: Any) -> None:
    for runtime in list(_runtimes):
        runtime.stop()


signals.worker_init.connect(_check_configuration, weak=False)
signals.worker_ready.connect(_look_at_nodes, weak=False)
signals.worker_process_shutdown.connect(_stop_all, weak=False)
signals.worker_shutdown.connect(_stop_all, weak=False)
