"""``Runtime``: the parts that the tasks of one app share in one process.

Its parts are made on first use. When a task is decorated, the app has no
configuration yet, and a process that only publishes needs no connection. The parts
survive a fork: in the child they start again, with connections and threads of their
own. They are stopped when a worker or one of its processes ends.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery import signals

from celery_redlock.app.masking import mask
from celery_redlock.app.outage_log import OutageLog
from celery_redlock.app.refusal_log import RefusalLog
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.basics.process import Background, OfOneProcess
from celery_redlock.errors import ConfigurationError
from celery_redlock.locking import watchdog_of
from celery_redlock.settings import Settings, setting_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery, Task
    from celery.utils.dispatch import Signal

    from celery_redlock.basics.process import ThreadRun
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.locks.watchdog import Watchdog
    from celery_redlock.options.lock_options import ResolvedOptions

log = logging.getLogger(__name__)

_ATTRIBUTE = "_redlock_runtime"  # of the app
_MADE = "made"
_ARGUMENTS = (  # of Redlock
    *("nodes", "ttl", "max_ttl", "node_timeout", "connect_timeout", "prefix"),
    "restart_guard",
)
_READ_ONCE = [f"redlock_{name}" for name in (*_ARGUMENTS, "on_backend_error")]
_PATIENCE = 1.0  # seconds for which an ending process waits for receivers
_IDLE = 10.0  # seconds without a signal, after which the thread for them ends

_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()
_instead: list[Callable[[Any], Runtime]] = []  # filled only by tests


def _refuse_fallback(app: Celery, defaults: Mapping[str, Any]) -> None:
    """Refuse the app that Celery makes where none is current and none is the default.

    A shared task gets it in a thread: an app is current in the thread that made it.
    """
    is_fallback = app.main == "default" and not app.set_as_current
    if is_fallback and not (
        setting_in(app.conf, "redlock_nodes") or "nodes" in defaults
    ):
        raise ConfigurationError(
            "No app is current in this thread, so a shared task uses Celery's fallback "
            "app, which has no redlock_nodes. Nothing can be locked; call "
            "app.set_default() where your app is made, or give the task app=..."
        )


class Runtime:
    """Settings, lock service, watchdog and resolved options of one app.

    The app's configuration is read now. ``defaults`` are settings for an app that does
    not have them, in tests.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(self, app: Celery, **defaults: Any) -> None:
        mask(app)
        _refuse_fallback(app, defaults)
        self._app = weakref.ref(app)
        self.settings = Settings.of(app.conf, **defaults)
        # Set by assignment; a module or an object is read once by Celery, too.
        self._read = [(name, app.conf.changes.get(name)) for name in _READ_ONCE]
        self.dispatcher = SignalDispatcher()
        self.outage_log = OutageLog()
        self.refusal_log = RefusalLog()
        self._service: dict[str, Redlock] = {}
        self._options: dict[str, ResolvedOptions] = {}
        self._warned: set[str] = set()
        _runtimes.add(self)

    @property
    def redlock(self) -> Redlock:
        """The lock service on the app's nodes; without nodes a `ConfigurationError`."""
        service = self._service.get(_MADE)
        if service is None:
            # If two threads come here at once, both get the same service.
            service = self._service.setdefault(_MADE, redlock_from(self.settings))
            watchdog_of(service)  # it resends what a process must not leave behind
        return service

    def refuse_changes(self, app: Celery) -> None:
        """Refuse settings that were changed after they were read."""
        if name := self._changed(app):
            raise ConfigurationError(
                f"{name} was changed after the first use of this app's locks. They "
                "still have the former value, so another process may have other "
                "ones. Nothing was locked. Set it before: settings are read once."
            )

    def _changed(self, app: Celery) -> str:
        """Return the name of a setting that was changed, or ``""``.

        The caller raises the error: in a traceback from here, the local variables would
        show the passwords of the nodes.
        """
        changes = app.conf.changes
        for name, value in self._read:
            now = changes.get(name)
            if now is not value and _plain(now) != _plain(value):
                return name
        return ""

    @property
    def watchdog(self) -> Watchdog:
        """The watchdog that renews the leases of this process."""
        return watchdog_of(self.redlock)

    def options(self, task: Task) -> ResolvedOptions:
        """Return a task's options, completed by the app's settings and checked."""
        name = task.name
        if name not in self._options:
            self._options[name] = task.lock_options.resolve(self.settings, name)
        return self._options[name]

    def warn_of_waiting(self, task: str) -> None:
        """Log once for each task that calls which wait occupy worker processes."""
        self._warn_once(
            "waits-in-a-process",
            "Calls of %s may wait for their lock (on_conflict: wait). A waiting call "
            "occupies a process of the worker and does nothing there. When calls wait "
            "in all processes, no other task runs. Where that may happen, use 'retry' "
            "or 'buffer_one', which wait in the queue.",
            task,
        )

    def warn_of_direct_calls(self, task: str, how: str, remedy: str) -> None:
        """Log once for each task that ``.map`` and the like run it without its lock."""
        self._warn_once(
            "runs-without-lock",
            "%s runs without its lock: %s calls it as a plain function. %s",
            task,
            how,
            remedy,
        )

    def _warn_once(self, event: str, text: str, task: str, *words: str) -> None:
        if (one := (text % (task, *words))) not in self._warned:
            self._warned.add(one)
            log.warning(text, task, *words, extra=log_fields(event, task=task))

    def use(self, redlock: Redlock) -> None:
        """Use this lock service instead of one on the app's nodes. For tests."""
        self._service[_MADE] = redlock

    def stop(self, *, renews_on: bool = False) -> None:
        """End the threads. The next use starts them again.

        Args:
            renews_on: Whether a thread goes on that renews leases.
        """
        for redlock in self._service.values():
            watchdog = watchdog_of(redlock)
            if not (renews_on and watchdog.has_leases):
                watchdog.stop()
        self.dispatcher.stop()
        if self._service:
            from celery_redlock.wire.broadcast import finish_requests  # noqa: PLC0415

            finish_requests()  # `atexit` does so, too, but not in a process of a pool


class SignalDispatcher(OfOneProcess):
    """Sends the watchdog's signals from a thread of its own, in the order of dispatch.

    Receivers are code of users and may be slow; the thread that renews locks must not
    be. The thread starts with the first signal that has a receiver, and ends when there
    was none for a while. A forked child gets a new one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget_parent()

    def forget_parent(self) -> None:
        """Forget the thread of the parent process."""
        self._queue: queue.SimpleQueue[tuple[Signal, Any, dict[str, Any]] | None]
        self._queue = queue.SimpleQueue()
        self._background = Background("redlock-dispatcher", self._run, SYSTEM_CLOCK)

    def dispatch(self, *, signal: Signal, sender: object, **named: Any) -> None:
        """Send a signal soon. Without receivers it costs nothing.

        If no thread can start, it is sent together with a later signal.
        """
        if not signal.receivers:
            return
        self.notice_fork()
        self._queue.put((signal, sender, named))
        self._background.ensure()

    def stop(self) -> None:
        """Send the remaining signals, for a second at most, and end the thread.

        The next signal starts it again.
        """
        self.notice_fork()
        self._background.stop(lambda: self._queue.put(None), _PATIENCE)

    def _run(self, run: ThreadRun) -> None:
        while True:
            try:
                entry = self._queue.get(timeout=_IDLE)
            except queue.Empty:
                entry = None
            if entry is not None:
                signal, sender, named = entry
                signal.send(sender=sender, **named)
            elif self._background.ends(run, lambda: not self._queue.empty()):
                return


def _plain(value: object) -> Any:
    """Return a setting as it was written; see ``app.masking``."""
    value = getattr(value, "nodes", value)
    return list(value) if isinstance(value, tuple) else value


def redlock_from(settings: Settings, **changes: Any) -> Redlock:
    """Return a lock service as the settings describe it, with changed arguments."""
    # A process that only publishes never imports it, and what it needs: half of this
    # package.
    from celery_redlock.locks.redlock import Redlock  # noqa: PLC0415

    named = {name: getattr(settings, name) for name in _ARGUMENTS}
    return Redlock(**{**named, **changes})


def runtime_of(app: Celery) -> Runtime:
    """Return the runtime of an app, made on first use.

    Raises:
        ConfigurationError: A setting is wrong, or was changed after its first use.
    """
    if _instead:
        return _instead[-1](app_itself(app))
    runtime: Runtime | None = vars(app).get(_ATTRIBUTE)  # a proxy shows its app's
    if runtime is None:
        app = app_itself(app)
        # If two threads come here at once, both get the same runtime.
        runtime = vars(app).setdefault(_ATTRIBUTE, Runtime(app))
    runtime.refuse_changes(app)
    return runtime


def forget_runtimes() -> None:
    """Let all apps read their settings again at their next use. For tests.

    Their connections are closed, and what they knew about their nodes is forgotten.
    """
    for runtime in list(_runtimes):
        app = runtime._app()  # noqa: SLF001
        if app is not None and vars(app).get(_ATTRIBUTE) is runtime:
            del vars(app)[_ATTRIBUTE]
            for redlock in runtime._service.values():  # noqa: SLF001
                redlock.close()


def app_itself(app: Celery) -> Any:
    """Return the app behind a proxy such as ``current_app``, or the app as given."""
    return getattr(app, "_get_current_object", lambda: app)()


@contextmanager
def instead(make: Callable[[Settings], Redlock], **defaults: Any) -> Iterator[None]:
    """Let all apps of this process use the lock services that ``make`` returns.

    For tests. While the block runs, the apps have other runtimes, and ``defaults`` for
    settings that they do not have, such as ``nodes``.
    """
    made: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()
    making = threading.Lock()

    def find(app: Celery) -> Runtime:
        with making:
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


def _stop_all(**_: object) -> None:
    """End what a worker has started. Who still holds a lock outlives the worker."""
    for runtime in list(_runtimes):
        runtime.stop(renews_on=True)


signals.worker_process_shutdown.connect(_stop_all, weak=False)
signals.worker_shutdown.connect(_stop_all, weak=False)
