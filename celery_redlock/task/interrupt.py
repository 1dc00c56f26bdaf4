"""Interrupts a running body: raises ``LockLost`` in it, from another thread.

==================  ==========================================================
the body runs in    it is interrupted by
==================  ==========================================================
a pool's process    SIGUSR1 to its main thread, which also ends a blocking call
another thread      an asynchronous exception; a blocking call has to end first
gevent, eventlet    a throw from the hub; a body that never yields gets no throw
==================  ==========================================================

::

    off ──interruptible──► on ──interrupt──► LockLost in the body
     ▲                     │                        │
     └────── it ended ─────┴──────── it ended ──────┘

Only the call that is given to ``interruptible`` can be interrupted. Acquiring and
releasing the lock, and all that Celery does after the body, are out of reach. A body
that catches the error and goes on has to be interrupted again.

In a pool's process Celery's soft time limit uses the same signal. It reaches the
interruptible call as always, and a wait that is given to ``with_soft_limits``. A limit
that arrives while the lock is acquired takes effect after that. One that arrives when
the body has ended, such as in a commit or a release, has no effect. When a task has
ended in an error, or was republished, no limit has an effect until the next one begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from billiard.process import current_process
from celery.signals import task_prerun

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from celery_redlock.errors import LockLost

_T = TypeVar("_T")
_SIGNAL = getattr(signal, "SIGUSR1", None)  # the one that billiard's limits use


class Interrupter:
    """Runs one body that other threads can interrupt. Use it as a context manager."""

    is_on = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def interruptible(self, call: Callable[[], _T]) -> _T:
        """Return the result of a body that can be interrupted until its end."""
        return _between(self._turn_on, call, self._turn_off)

    def with_soft_limits(self, wait: Callable[[], _T]) -> _T:
        """Call it and return its result. Time limits reach it, but no interrupt."""
        return wait()

    def interrupt(self, error: LockLost) -> bool:
        """Raise the error in the call, if one is interruptible now. Thread-safe."""
        raise NotImplementedError

    def _turn_on(self) -> None:
        self.is_on = True

    def _turn_off(self) -> None:
        self.is_on = False


def _between(
    before: Callable[[], None], call: Callable[[], _T], after: Callable[[], None]
) -> _T:
    """Call all three, and return the result of `call`; `after` runs in any case."""
    try:
        try:
            before()
            return call()
        finally:
            after()
    finally:
        after()  # an interrupt may have cut the first one short


def interrupter(*, within_task: bool = False) -> Interrupter:
    """Return the interrupter that fits the calling thread or greenlet.

    ``within_task``: the call is a part of another task, which runs on after it.
    """
    throw_soon = _hub_callback()
    if throw_soon:
        return _InGreenlet(throw_soon)
    is_pool_child = getattr(current_process(), "_parent_pid", None) is not None
    is_main = threading.get_ident() == threading.main_thread().ident
    if _SIGNAL and is_pool_child and is_main:
        return _BySignal(ends_task=not within_task)
    return _ByAsyncException()


# -- prefork: a signal ---------------------------------------------------------


class _SignalHandler:
    """Handles SIGUSR1 in a pool's process: interrupts, and Celery's soft limits.

    All but ``send`` runs on the main thread of the process. Python also runs signal
    handlers there, between two instructions: no lock is needed.
    """

    def __init__(self) -> None:
        self.is_blocked = False
        self.has_pending = False  # a signal that arrived while they were blocked
        self.is_over = False  # the task has its result; billiard has not sent it yet
        self._previous: Any = None  # billiard's handler
        self._interrupt: tuple[_BySignal, LockLost] | None = None

    def install(self) -> None:
        """Replace the present handler, unless it is this one already.

        This is not possible before the first task: billiard installs its handler
        after the last hook that could call this.

        An interrupt that came too late for an earlier task is forgotten: the next soft
        time limit would be taken for it, and would have no effect.
        """
        if self._interrupt and not self._interrupt[0].is_entered:
            self._interrupt = None
        if signal.getsignal(_SIGNAL) != self._handle:  # type: ignore[arg-type]
            self._previous = signal.signal(_SIGNAL, self._handle)  # type: ignore[arg-type]
            task_prerun.connect(self.begin, dispatch_uid="redlock-limits")

    def send(self, target: _BySignal, error: LockLost) -> None:
        """Have the error raised in the target's call. Thread-safe."""
        self._interrupt = target, error
        if sys.platform != "win32":
            main = threading.main_thread().ident
            signal.pthread_kill(main, _SIGNAL)  # type: ignore[arg-type]

    def block(self) -> None:
        """Keep a signal that arrives from now on until ``unblock``."""
        self.is_blocked = True

    def unblock(self) -> None:
        """Handle signals again, and the one that arrived meanwhile."""
        self.is_blocked = False
        if self.has_pending:
            self.has_pending = False
            self._handle(_SIGNAL or 0, None)

    def begin(self, task: Any = None, **_: object) -> None:
        """Let the signals of the next task through, and none of the one before."""
        if task is None or not task.request.is_eager:
            self.is_over = self.has_pending = False
            self._interrupt = None

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.is_over:
            return
        if self.is_blocked:
            self.has_pending = True
            return
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is None:
            if callable(self._previous):
                self._previous(signum, frame)
        elif interrupt[0].is_on:
            raise interrupt[1]


_signal_handler = _SignalHandler()


class _BySignal(Interrupter):
    """Interrupts by SIGUSR1, in a pool's process."""

    is_entered = False

    def __init__(self, *, ends_task: bool) -> None:
        self._ends_task = ends_task

    def __enter__(self) -> None:
        _signal_handler.install()
        self.is_entered = True
        self._was_blocked = _signal_handler.is_blocked
        _signal_handler.block()

    def __exit__(self, *error: object) -> None:
        self.is_entered = False
        _signal_handler.is_blocked = self._was_blocked
        if _signal_handler.is_blocked:
            return
        if not self._ends_task:
            _signal_handler.unblock()
            return
        # The task has ended in time. What it did is committed, or its lock released.
        _signal_handler.has_pending = False
        if error[0]:
            # The error is the result of the task. While billiard sends that, a limit
            # would make a `MaybeEncodingError` of it.
            _signal_handler.is_over = True

    def _turn_on(self) -> None:
        self.is_on = True
        _signal_handler.unblock()

    def _turn_off(self) -> None:
        self.is_on = False
        _signal_handler.block()

    def with_soft_limits(self, wait: Callable[[], _T]) -> _T:
        return _between(_signal_handler.unblock, wait, _signal_handler.block)

    def interrupt(self, error: LockLost) -> bool:
        if is_on := self.is_on:
            _signal_handler.send(self, error)
        return is_on


# -- threads, solo: an asynchronous exception ------------------------------------


class _ByAsyncException(Interrupter):
    """Interrupts by an asynchronous exception, which has no text."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._mutex = threading.Lock()
        self._has_thrown = False

    def _turn_off(self) -> None:
        with self._mutex:
            self.is_on = False
        if self._has_thrown:
            _withdraw_exception(self._thread_id)

    def interrupt(self, error: LockLost) -> bool:
        with self._mutex:
            if is_on := self.is_on:
                self._has_thrown = True
                _throw(self._thread_id, type(error))
        return is_on


class _Blank(BaseException):
    """Replaces an exception that has not arrived when the body has ended."""


def _withdraw_exception(own_id: int) -> None:
    """Make sure that no asynchronous exception arrives in the calling thread any more.

    Setting the exception to NULL would do that, too. But CPython would go on looking
    for one: that slows down all threads of the process, and 3.11 hangs in the first
    function that is traced, as by a debugger or by coverage.
    """
    with contextlib.suppress(_Blank):
        _throw(own_id, _Blank)
        for _ in range(100):  # it arrives with a jump at the latest
            pass


def _throw(thread_id: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), ctypes.py_object(kind)
    )


# -- gevent, eventlet: a throw -----------------------------------------------------


class _InGreenlet(Interrupter):
    """Interrupts a greenlet: the hub throws the error into it."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._greenlet = sys.modules["greenlet"].getcurrent()
        self._soon = soon

    def interrupt(self, error: LockLost) -> bool:
        if is_on := self.is_on:
            self._soon(functools.partial(self._deliver, error))
        return is_on

    def _deliver(self, error: LockLost) -> None:
        if self.is_on:
            self._greenlet.throw(error)


def _hub_callback() -> Callable[[Callable[[], None]], object] | None:
    """Return how to have the hub call a function; None outside of a pool greenlet."""
    greenlet = sys.modules.get("greenlet")
    parent = greenlet.getcurrent().parent if greenlet else None
    if parent is None:
        return None
    gevent = sys.modules.get("gevent.hub")
    if gevent and isinstance(parent, gevent.Hub):
        callback: Callable[[Callable[[], None]], object]
        callback = parent.loop.run_callback_threadsafe
        return callback
    eventlet = sys.modules.get("eventlet.hubs")
    if eventlet and eventlet.get_hub().greenlet is parent:
        return functools.partial(eventlet.get_hub().schedule_call_global, 0)
    return None
