"""State of one process, which a fork must not copy, and its threads.

A fork is noticed by the process id, when such state is used. Hooks of Python do not
run when a C program forks, as uWSGI does. Where they run, they only hurry: a child
closes its copies of the parent's connections at once.

Threads may not start at any time: the system has no more, or the interpreter ends. At
its end all threads but one are gone, without a word, with what they held.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.basics.clock import Clock


_ONE = 0  # the key in a dict of one: `setdefault` is atomic
_BEGINS_WITHIN = 1.0  # seconds for a thread to begin

_all_of_one: weakref.WeakSet[OfOneProcess] = weakref.WeakSet()
# Who forgets the parent has the lock of this process: a thread of the parent may have
# held that of the parent when it forked.
_forgetting: dict[int, threading.RLock] = {}


class OfOneProcess:
    """State that a forked child must not share. Subclasses say how they forget it.

    Attributes:
        pid: The process that it belongs to. Where each call counts, compare it yourself
            before you call `notice_fork`.
    """

    pid = 0

    def __init__(self) -> None:
        self.pid = os.getpid()
        _all_of_one.add(self)

    def forget_parent(self) -> None:
        """Start anew in a forked child, touching nothing of the parent's."""
        raise NotImplementedError

    def notice_fork(self) -> None:
        """Forget the state of another process. Call it before each use.

        Threads that use it at the same time wait until one of them has forgotten all:
        half of it would lead to the sockets and locks of the parent.
        """
        here = os.getpid()
        if self.pid == here:
            return
        with _forgetting.setdefault(here, threading.RLock()):
            if self.pid != here:
                self.forget_parent()
                self.pid = here  # last: what is interrupted is done again


def _after_fork_in_child() -> None:
    for each in list(_all_of_one):
        each.notice_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def start_thread(function: Callable[..., object], *args: object) -> bool:
    """Run the function in a daemon thread. Return False if there can be none.

    Not by `threading`, whose ``start`` waits for the thread: the exception of a time
    limit inside it would spoil the lock that both share.
    """
    if sys.is_finalizing():
        return False
    try:
        _thread.start_new_thread(function, args)
    except RuntimeError:  # too many threads, or the interpreter ends just now
        return False
    return True


class ThreadRun:
    """One thread of a `Background`, from its start to its end."""

    __slots__ = ("end", "has_begun", "started_at", "thread")

    def __init__(self, now: float) -> None:
        self.started_at = now
        self.has_begun = False
        self.thread = 0  # its number
        self.end = threading.Lock()  # released at its end
        self.end.acquire()


class Background:
    """A thread that runs while there is work, started by the first caller with work.

    There is no lock that an interruption could leave locked. A caller with work enters
    the work first and calls `ensure` then. A thread with nothing to do gives up its
    place first, and then looks for work once more. So one of both sees the other.

    Args:
        name: The name of the thread.
        body: What the thread does. It returns when `ends` or `is_over` say so.
        clock: Reads time.

    Attributes:
        has_begun: Whether the thread runs, and will look for work once more.
    """

    def __init__(
        self, name: str, body: Callable[[ThreadRun], None], clock: Clock
    ) -> None:
        self._name = name
        self._body = body
        self._clock = clock
        self.has_begun = False
        self._run: dict[int, ThreadRun] = {}

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return bool(self._run)

    def ensure(self) -> bool:
        """Start the thread, unless it runs. Return False if there can be none."""
        run, now = self._run.get(_ONE), self._clock.monotonic()
        if run is not None:
            if run.has_begun or now < run.started_at + _BEGINS_WITHIN:
                return True
            self._give_up(run)  # the caller that was to start it was interrupted
        made = ThreadRun(now)
        if self._run.setdefault(_ONE, made) is not made:
            return True  # another thread has just started it
        if start_thread(self._carry_out, made):
            return True
        self._give_up(made)
        return False

    def is_over(self, run: ThreadRun) -> bool:
        """Tell whether the thread must end: it was stopped, or replaced."""
        return self._run.get(_ONE) is not run

    def ends(self, run: ThreadRun, has_work: Callable[[], object]) -> bool:
        """Give up the place of a thread without work. Tell whether the thread ends."""
        self._give_up(run)
        if not has_work() or self._run.setdefault(_ONE, run) is not run:
            return True
        self.has_begun = True
        return False

    def stop(self, wake: Callable[[], object], seconds: float) -> None:
        """Have the thread end, and wait for that for so many seconds at most."""
        run = self._run.get(_ONE)
        if run is None:
            return
        self._give_up(run)
        wake()
        if run.thread != threading.get_ident() and not sys.is_finalizing():
            run.end.acquire(timeout=seconds)

    def _give_up(self, run: ThreadRun) -> None:
        if self._run.get(_ONE) is run:
            self.has_begun = False
            self._run.pop(_ONE, None)

    def _carry_out(self, run: ThreadRun) -> None:
        run.has_begun, run.thread = True, threading.get_ident()
        threading.current_thread().name = self._name
        try:
            if not self.is_over(run):
                self.has_begun = True
                self._body(run)
        finally:
            self._give_up(run)
            run.end.release()
