"""A body is struck while it is exposed, and not a moment longer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from celery_redlock import LockLost
from celery_redlock.interrupt import interrupter

if TYPE_CHECKING:
    from celery_redlock.interrupt import Interrupter

LOST = LockLost("lost", key="k")
LONG = 10.0  # seconds in which everything has happened


def run_until_struck(guard: Interrupter) -> None:
    """Strike the calling thread from another one, and wait for it in small steps."""
    striker = threading.Thread(target=guard.strike, args=(LOST,))
    striker.start()
    never = threading.Event()
    for _ in range(round(LONG / 0.005)):
        never.wait(0.005)
    pytest.fail("was not struck")


def test_exposed_call_is_struck_where_it_stands() -> None:
    """LockLost comes out of the body, whatever it was doing."""
    guard = interrupter()

    with guard, pytest.raises(LockLost):
        guard.expose(lambda: run_until_struck(guard))


def test_result_of_an_exposed_call_comes_back() -> None:
    """Where nothing strikes, it is a call."""
    guard = interrupter()

    with guard:
        assert guard.expose(lambda: 42) == 42


def test_strike_before_and_after_is_without_effect() -> None:
    """Taking and giving back the lock are out of reach."""
    guard = interrupter()

    with guard:
        guard.strike(LOST)
        guard.expose(lambda: None)
        guard.strike(LOST)

    assert sum(range(1000)) == 499500  # would be hit here at the latest


def test_strike_that_comes_with_the_end_is_taken_back() -> None:
    """What was thrown and has not arrived when the body ends never arrives."""
    guard = interrupter()

    def strike_itself() -> None:
        guard.strike(LOST)

    for _ in range(200):
        with guard, suppress(LockLost):
            guard.expose(strike_itself)

    assert sum(range(1000)) == 499500


@pytest.mark.parametrize(
    "body", ["guard.strike(LOST)", "guard.strike(LOST); [None for _ in range(9)]"]
)
def test_strike_leaves_nothing_behind_in_the_interpreter(body: str) -> None:
    """Functions can be traced afterwards, as by a debugger: CPython 3.11 hung."""
    program = f"""
        import contextlib, sys
        from celery_redlock import LockLost
        from celery_redlock.interrupt import interrupter
        LOST, guard = LockLost("lost", key="k"), interrupter()
        def body():
            {body}
        with contextlib.suppress(LockLost), guard:
            guard.expose(body)
        def traced():
            return "went on"
        sys.settrace(lambda *_: None)
        print(traced())
    """
    ended = subprocess.run(  # noqa: S603  (our own)
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=True,
    )

    assert ended.stdout == "went on\n"


def test_body_that_swallows_can_be_struck_again() -> None:
    """One strike may be caught; the next one comes all the same."""
    guard = interrupter()

    def swallow_once() -> None:
        with pytest.raises(LockLost):
            run_until_struck(guard)
        run_until_struck(guard)

    with guard, pytest.raises(LockLost):
        guard.expose(swallow_once)


def test_each_thread_is_struck_alone() -> None:
    """A loss in one thread is none of the others' business."""
    guard = interrupter()
    outcome: list[BaseException | str] = []
    may_end = threading.Event()

    def bystander() -> None:
        mine = interrupter()
        with mine:
            outcome.append(mine.expose(lambda: str(may_end.wait(LONG))))

    thread = threading.Thread(target=bystander)
    thread.start()
    with guard, pytest.raises(LockLost):
        guard.expose(lambda: run_until_struck(guard))
    may_end.set()
    thread.join()

    assert outcome == ["True"]


# -- in a pool's child ---------------------------------------------------------------

CHILD = """
    import os, signal, threading
    from billiard import Process
    from celery_redlock import LockLost
    from celery_redlock.interrupt import interrupter

    class SoftLimit(Exception): pass

    def soft_limit(*_):
        raise SoftLimit

    def limit():
        os.kill(os.getpid(), signal.SIGUSR1)

    def child():
        signal.signal(signal.SIGUSR1, soft_limit)
        guard = interrupter()
        print(type(guard).__name__)
        {body}

    process = Process(target=child)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def say_in_child(body: str) -> list[str]:
    """Run these lines on the main thread of a pool's child; return what they print."""
    indented = textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()
    program = textwrap.dedent(CHILD).replace("{body}", indented.replace("\n    ", "\n"))
    done = subprocess.run(  # noqa: S603  (the program above)
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    name, *said = done.stdout.splitlines()
    assert name == "_BySignal"
    return said


def test_child_is_struck_out_of_a_blocking_call() -> None:
    """The signal ends what an asynchronous exception would wait for."""
    said = say_in_child(
        """
        threading.Timer(0.1, guard.strike, [LockLost("lost")]).start()
        try:
            with guard:
                guard.expose(lambda: signal.pause() or signal.pause())
        except LockLost as error:
            print(error)
        """
    )

    assert said == ["lost"]


def test_child_gets_its_soft_limit_while_it_is_exposed() -> None:
    """The same signal from Celery does what it always did."""
    said = say_in_child(
        """
        try:
            with guard:
                guard.expose(limit)
        except SoftLimit:
            print("limit")
        """
    )

    assert said == ["limit"]


def test_child_gets_a_soft_limit_that_came_too_early_with_the_body() -> None:
    """While the lock is taken it waits."""
    said = say_in_child(
        """
        try:
            with guard:
                limit()
                print("taken")
                guard.expose(lambda: print("never"))
        except SoftLimit:
            print("limit")
        """
    )

    assert said == ["taken", "limit"]


def test_child_gets_a_soft_limit_that_came_late_after_the_release() -> None:
    """While the lock is given back it waits."""
    said = say_in_child(
        """
        try:
            with guard:
                guard.expose(lambda: print("body"))
                limit()
                print("released")
        except SoftLimit:
            print("limit")
        """
    )

    assert said == ["body", "released", "limit"]


def test_child_that_has_failed_keeps_its_own_error() -> None:
    """A late limit does not take the place of what the body ended in."""
    said = say_in_child(
        """
        try:
            with guard:
                try:
                    guard.expose(lambda: {}["missing"])
                finally:
                    limit()
        except KeyError as error:
            print(error)
        """
    )

    assert said == ["'missing'"]


def test_child_forgets_a_strike_that_came_too_late() -> None:
    """It is nobody's soft limit either."""
    said = say_in_child(
        """
        with guard:
            guard.expose(lambda: None)
            guard.strike(LockLost("late"))
        print("alive")
        """
    )

    assert said == ["alive"]
