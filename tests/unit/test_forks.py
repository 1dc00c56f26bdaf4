"""Forks while a thread uses what a fork must not copy half-done."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.forks import forks_wait
from celery_redlock.operations.doctor import Case, findings_of
from celery_redlock.operations.doctor.placement import hosts
from celery_redlock.wire import connector as connector_module
from celery_redlock.wire.connector import Connector
from celery_redlock.wire.url import parse_node
from tests.interruptions import counts_places
from tests.nodes.support import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has none")

FAR = 60.0  # seconds: longer than any thread takes
at_fork: list[Callable[[], object]] = []  # hooks cannot be removed again


def _call_hooks() -> None:
    for hook in at_fork:
        hook()


@pytest.fixture(scope="module", autouse=True)
def _has_hooks() -> None:
    """Have Python call what is in `at_fork` before the hooks of the package."""
    os.register_at_fork(before=_call_hooks)


class Slow:
    """A function that returns soon after a fork has begun."""

    def __init__(self, returns: object) -> None:
        self.returns = returns
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.has_ended = False

    def __call__(self, *_: object, **__: object) -> Any:
        """Wait for the fork."""
        self.has_begun.set()
        self.may_end.wait(FAR)
        time.sleep(0.05)  # so that a fork that does not wait is earlier
        self.has_ended = True
        return self.returns


@pytest.fixture
def slow() -> Iterator[Callable[[object], Slow]]:
    """Give a function that makes slow functions; all return at the end of the test."""
    made: list[Slow] = []

    def make(returns: object = None) -> Slow:
        made.append(Slow(returns))
        at_fork.append(made[-1].may_end.set)
        return made[-1]

    yield make
    at_fork.clear()
    for each in made:
        each.may_end.set()


def fork(tell: Callable[[], int] = lambda: 0) -> int:
    """Fork a child that tells something at once, and return that."""
    pid = os.fork()
    if pid == 0:
        os._exit(tell())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def enter(seconds: float, function: Callable[[], object]) -> threading.Thread:
    """Start a thread that calls the function in a block that forks wait for."""

    def run() -> None:
        with forks_wait(seconds):
            function()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_fork_waits_for_the_end_of_a_block(slow: Callable[[], Slow]) -> None:
    """The child gets no lock that the block holds."""
    work = slow()
    thread = enter(FAR, work)
    work.has_begun.wait(FAR)

    assert fork(lambda: work.has_ended)

    thread.join(FAR)


def test_fork_waits_for_a_block_that_needs_a_later_one(
    slow: Callable[[], Slow],
) -> None:
    """A thread that releases a lock waits for the one that connects."""
    work, ended = slow(), []

    def release() -> None:
        work()
        later = enter(FAR, lambda: None)
        later.join(FAR / 6)
        ended.append(not later.is_alive())

    thread = enter(FAR, release)
    work.has_begun.wait(FAR)

    assert fork(lambda: ended == [True])

    thread.join(FAR)


def test_fork_waits_no_longer_than_a_block_says() -> None:
    """A server may not answer. The child waits for no thread of its parent."""
    work = Slow(None)
    thread = enter(0.01, work)
    work.has_begun.wait(FAR)

    assert not fork(lambda: work.has_ended)
    assert fork(fork) == 0

    work.may_end.set()
    thread.join(FAR)


LATE = """
import os, threading

lock, has_lock = threading.Lock(), threading.Event()

def hold():
    with forks_wait(60), lock:
        has_lock.set()
        threading.Event().wait()

def begin():
    threading.Thread(target=hold, daemon=True).start()
    has_lock.wait(0.2)  # a block that does not wait for the fork is earlier

os.register_at_fork(before=begin)  # the first is called as the last one
from celery_redlock.basics.forks import forks_wait

pid = os.fork()
if not pid:
    os._exit(not lock.acquire(blocking=False))
print(os.waitpid(pid, 0)[1], has_lock.wait(60))
"""


def test_block_begins_when_a_fork_has_ended() -> None:
    """A fork looks for blocks first, and would copy the lock of one that begins."""
    assert run_python(LATE) == ["0 True"]


INTERRUPTED = """
import os, threading

places = iter(range(1, 20))

def begin(at):
    with Interruption(at, forks.__file__), forks.forks_wait(60):
        print("began")

def interrupt():
    for at in places:
        thread = threading.Thread(target=begin, args=(at,))
        thread.start()
        thread.join()

os.register_at_fork(before=interrupt)  # the first is called as the last one
from celery_redlock.basics import forks
from celery_redlock.testing.clock import FakeClock
from tests.interruptions import Interruption

def fork():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)

forks.SYSTEM_CLOCK = FakeClock()
fork()
slept = len(forks.SYSTEM_CLOCK.slept)
fork()
print(len(forks.SYSTEM_CLOCK.slept) - slept)
"""


@counts_places
def test_block_that_is_interrupted_while_it_waits_for_a_fork_has_ended() -> None:
    """Each later fork would wait for a block of which no thread is inside."""
    assert run_python(INTERRUPTED) == ["0"]


def test_fork_inside_a_block_does_not_wait_for_it() -> None:
    """It would wait for itself."""
    ended = []

    def run() -> None:
        with forks_wait(FAR * 10):
            ended.append(fork())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(FAR)

    assert ended == [0]


def test_fork_waits_for_threads_that_connect(
    slow: Callable[[object], Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may hold the lock of the resolver, and the child could not release it."""
    opened = slow("refused the connection")
    monkeypatch.setattr(connector_module, "open_connection", opened)
    monkeypatch.setattr(connector_module, "_FORK_WAITS", FAR)
    connector = Connector(parse_node("redis://a"), clock=SYSTEM_CLOCK, timeout=1.0)
    connector.begin()
    opened.has_begun.wait(FAR)

    assert not fork(lambda: connector.is_busy)


def test_fork_waits_while_the_doctor_looks_names_up(
    slow: Callable[[object], Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs the doctor in a thread when it starts."""
    look_up = slow([])
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    case = Case(Redlock(["redis://a", "redis://b", "redis://c"]), [])
    doctor = threading.Thread(target=findings_of, args=(case, [hosts]))
    doctor.start()
    look_up.has_begun.wait(FAR)

    assert fork(lambda: look_up.has_ended)

    doctor.join(FAR)
