"""Stop a running body from outside: throw ``LockLost`` into it.

==================  ==========================================================
where it runs       how it is struck
==================  ==========================================================
a pool's child      SIGUSR1 to its main thread, which also ends a blocking call
another thread      an asynchronous exception; a blocking call has to end first
gevent, eventlet    a throw from the hub; a body that never yields is not struck
==================  ==========================================================

::

    shut ──expose──► exposed ──strike──► LockLost in the body
     ▲                  │                        │
     └──── it ended ────┴──── it ended ──────────┘

It can be struck while it is exposed and not a moment longer: taking and giving
back the lock, and whatever Celery does after the body, are out of reach. A body
that swallows the error and goes on has to be struck again.

In a pool's child Celery's soft time limit comes by the same signal. It gets
through to an exposed body as always; one that comes while the lock is being
taken or given back waits until that is done.
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

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from celery_redlock.errors import LockLost

__all__ = ["Interrupter", "interrupter"]

_T = TypeVar("_T")
_SIGNAL = getattr(signal, "SIGUSR1", None)  # the one that billiard's limits use


class Interrupter:
    """Runs one body, which other threads can stop. Use it as a context manager."""

    def __init__(self) -> None:
        self._exposed = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def expose(self, call: Callable[[], _T]) -> _T:
        """Call it and return what it returns. It can be struck until then."""
        try:
            try:
                self._open()
                return call()
            finally:
                self._shut()
        finally:
            self._shut()  # a strike may have cut the first one short

    def strike(self, error: LockLost) -> None:
        """Throw the error into the call that is exposed, if any. For any thread."""
        raise NotImplementedError

    def _open(self) -> None:
        self._exposed = True

    def _shut(self) -> None:
        self._exposed = False


def interrupter() -> Interrupter:
    """Return the interrupter that fits the calling thread or greenlet."""
    throw_soon = _hub_callback()
    if throw_soon:
        return _InGreenlet(throw_soon)
    if _SIGNAL and _is_pool_child() and _is_main_thread():
        return _BySignal()
    return _ByAsyncException()


# -- prefork: a signal ---------------------------------------------------------


class _Doorman:
    """SIGUSR1 in a pool's child: ours is for us, the rest for who had it before.

    Everything but ``ring`` happens on the child's main thread, where Python also
    runs signal handlers, between two of its instructions: there is no lock.
    """

    def __init__(self) -> None:
        self.shut = False
        self._before: Any = None
        self._guest: tuple[_BySignal, LockLost] | None = None
        self._waiting = False

    def stand(self) -> None:
        """Take the place of the present handler, unless that is us already.

        Not possible before the first task: billiard installs its own after
        everything that could call us has been called.
        """
        if signal.getsignal(_SIGNAL) != self._answer:  # type: ignore[arg-type]
            self._before = signal.signal(_SIGNAL, self._answer)  # type: ignore[arg-type]

    def ring(self, guest: _BySignal, error: LockLost) -> None:
        """Have this error delivered to this guest. For any thread."""
        self._guest = guest, error
        main = threading.main_thread().ident
        signal.pthread_kill(main, _SIGNAL)  # type: ignore[arg-type]

    def open(self) -> None:
        """Let in who comes, and who came while it was shut."""
        self.shut = False
        if self._waiting:
            self._waiting = False
            self._answer(_SIGNAL or 0, None)

    def send_away(self) -> None:
        """Forget who came while it was shut."""
        self._waiting = False

    def _answer(self, signum: int, frame: FrameType | None) -> None:
        if self.shut:
            self._waiting = True
            return
        guest, self._guest = self._guest, None
        if guest is None:
            if callable(self._before):
                self._before(signum, frame)
        elif guest[0].is_exposed:
            raise guest[1]


_doorman = _Doorman()


class _BySignal(Interrupter):
    """Inside ``with``, time limits reach only what is exposed."""

    def __enter__(self) -> None:
        _doorman.stand()
        self._outer_shut, _doorman.shut = _doorman.shut, True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _doorman.shut = self._outer_shut
        if _doorman.shut:
            return
        if error is None:
            _doorman.open()
        else:  # the task has ended in an error of its own: that is what counts
            _doorman.send_away()

    @property
    def is_exposed(self) -> bool:
        return self._exposed

    def _open(self) -> None:
        self._exposed = True
        _doorman.open()

    def _shut(self) -> None:
        self._exposed = False
        _doorman.shut = True

    def strike(self, error: LockLost) -> None:
        if self._exposed:
            _doorman.ring(self, error)


def _is_pool_child() -> bool:
    return getattr(current_process(), "_parent_pid", None) is not None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


# -- threads, solo: an asynchronous exception ------------------------------------


class _ByAsyncException(Interrupter):
    """The interpreter raises it between two instructions; the error has no text."""

    def __init__(self) -> None:
        super().__init__()
        self._thread_id = threading.get_ident()
        self._mutex = threading.Lock()
        self._struck = False

    def _shut(self) -> None:
        with self._mutex:
            self._exposed = False
        if self._struck:
            _take_back(self._thread_id)

    def strike(self, error: LockLost) -> None:
        with self._mutex:
            if self._exposed:
                self._struck = True
                _throw(self._thread_id, type(error))


class _Blank(BaseException):
    """Takes the place of a strike that has not arrived when the body has ended."""


def _take_back(own_id: int) -> None:
    """Let nothing arrive any more in the calling thread.

    To set it to NULL would do that, too, but CPython would look for it for ever
    after: that slows down all threads of the process, and 3.11 hangs in the first
    function that is traced, as by a debugger or by coverage.
    """
    with contextlib.suppress(_Blank):
        _throw(own_id, _Blank)
        for _ in range(100):  # it comes with a jump at the latest
            pass


def _throw(thread_id: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), ctypes.py_object(kind)
    )


# -- gevent, eventlet: a throw -----------------------------------------------------


class _InGreenlet(Interrupter):
    """The hub switches into the greenlet with the error, if it is still exposed."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        super().__init__()
        self._greenlet = sys.modules["greenlet"].getcurrent()
        self._soon = soon

    def strike(self, error: LockLost) -> None:
        if self._exposed:
            self._soon(functools.partial(self._deliver, error))

    def _deliver(self, error: LockLost) -> None:
        if self._exposed:
            self._greenlet.throw(error)


def _hub_callback() -> Callable[[Callable[[], None]], object] | None:
    """Return how to have the hub call something; None outside of a pool greenlet."""
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
