"""A body is interrupted while it is interruptible, and at no other time."""

from __future__ import annotations

import textwrap
import threading
from contextlib import suppress

import pytest

from celery_redlock import LockLost
from celery_redlock.task.interrupt import Interrupter, interrupter
from tests.nodes.support import run_python
from tests.unit.tasks.support import LONG, run_until_stopped

LOST = LockLost("lost", key="k")


def run_until_interrupted(guard: Interrupter) -> None:
    """Interrupt the calling thread from another one; wait for it in small steps."""
    is_waiting = threading.Event()

    def interrupt() -> None:
        is_waiting.wait()  # an interrupt inside of `start` would break that thread
        guard.interrupt(LOST)

    threading.Thread(target=interrupt).start()
    is_waiting.set()
    run_until_stopped()


def test_interrupt_before_and_after_the_call_has_no_effect() -> None:
    """An interrupt does not reach the code that acquires or releases the lock."""
    guard = interrupter()

    with guard:
        guard.interrupt(LOST)
        guard.interruptible(lambda: None)
        guard.interrupt(LOST)

    assert sum(range(1000)) == 499500  # a late interrupt would arrive here


def test_interrupt_does_not_reach_a_wait() -> None:
    """A wait before or after the body gets time limits alone."""
    guard = interrupter()

    with guard:
        assert guard.with_soft_limits(lambda: guard.interrupt(LOST)) is False

    assert sum(range(1000)) == 499500


def test_interrupt_at_the_end_of_the_call_is_withdrawn() -> None:
    """An interrupt that is still pending when the body ends never arrives."""
    guard = interrupter()

    for _ in range(200):
        with guard, suppress(LockLost):
            guard.interruptible(lambda: guard.interrupt(LOST))

    assert sum(range(1000)) == 499500


@pytest.mark.parametrize(
    "body", ["guard.interrupt(LOST)", "guard.interrupt(LOST); [None for _ in range(9)]"]
)
def test_interrupt_leaves_nothing_behind_in_the_interpreter(body: str) -> None:
    """A debugger can trace functions afterwards; CPython 3.11 used to hang."""
    program = f"""
        import contextlib, sys
        from celery_redlock import LockLost
        from celery_redlock.task.interrupt import interrupter
        LOST, guard = LockLost("lost", key="k"), interrupter()
        def body():
            {body}
        with contextlib.suppress(LockLost), guard:
            guard.interruptible(body)
        def traced():
            return "went on"
        sys.settrace(lambda *_: None)
        print(traced())
    """

    assert run_python(textwrap.dedent(program)) == ["went on"]


def test_body_that_swallows_can_be_interrupted_again() -> None:
    """If the body catches one interrupt, the next one still arrives."""
    guard = interrupter()

    def swallow_once() -> None:
        with pytest.raises(LockLost):
            run_until_interrupted(guard)
        run_until_interrupted(guard)

    with guard, pytest.raises(LockLost):
        guard.interruptible(swallow_once)


def test_each_thread_is_interrupted_alone() -> None:
    """A loss in one thread interrupts no other thread."""
    guard = interrupter()
    outcome: list[BaseException | str] = []
    may_end = threading.Event()

    def bystander() -> None:
        mine = interrupter()
        with mine:
            outcome.append(mine.interruptible(lambda: str(may_end.wait(LONG))))

    thread = threading.Thread(target=bystander)
    thread.start()
    with guard, pytest.raises(LockLost):
        guard.interruptible(lambda: run_until_interrupted(guard))
    may_end.set()
    thread.join()

    assert outcome == ["True"]


# -- in a pool's child ---------------------------------------------------------------

CHILD = """
    import os, signal, threading
    from billiard import Process
    from celery_redlock import LockLost
    from celery_redlock.task.interrupt import interrupter

    class SoftLimit(Exception): pass

    def soft_limit(*_):
        raise SoftLimit

    def limit():
        os.kill(os.getpid(), signal.SIGUSR1)

    def child():
        signal.signal(signal.SIGUSR1, soft_limit)
        guard = interrupter()
        print(type(guard).__name__)
        try:
            {body}
        except SoftLimit:
            print("limit")

    process = Process(target=child)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def say_in_child(body: str) -> list[str]:
    """Run these lines on the main thread of a pool's child; return what they print.

    A soft limit that they let through is printed as "limit".
    """
    body = textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip()
    name, *said = run_python(textwrap.dedent(CHILD).replace("{body}", body))
    assert name == "_BySignal"
    return said


def test_child_is_interrupted_in_a_blocking_call() -> None:
    """The signal ends a blocking call; an asynchronous exception would not."""
    said = say_in_child(
        """
        threading.Timer(0.1, guard.interrupt, [LockLost("lost")]).start()
        try:
            with guard:
                guard.interruptible(lambda: signal.pause() or signal.pause())
        except LockLost as error:
            print(error)
        """
    )

    assert said == ["lost"]


def test_child_gets_its_soft_limit_while_it_is_interruptible() -> None:
    """The same signal from Celery still raises the soft limit."""
    said = say_in_child(
        """
        with guard:
            guard.interruptible(limit)
        """
    )

    assert said == ["limit"]


def test_child_gets_its_soft_limit_in_a_wait_but_no_interrupt() -> None:
    """An interrupt on its way at the end of the body does not reach a later wait."""
    said = say_in_child(
        """
        from celery_redlock.task.interrupt import _signal_handler
        with guard:
            guard.interruptible(lambda: None)
            _signal_handler.send(guard, LockLost("late"))
            guard.with_soft_limits(lambda: print("waits"))
            guard.with_soft_limits(limit)
        """
    )

    assert said == ["waits", "limit"]


def test_child_gets_its_soft_limit_after_an_interrupt_that_came_too_late() -> None:
    """An interrupt for an earlier task does not swallow the limit of the next one."""
    said = say_in_child(
        """
        from celery.signals import task_prerun
        from celery_redlock.task.interrupt import _signal_handler
        try:
            with guard:
                _signal_handler.send(guard, LockLost("late"))
                {}["missing"]
        except KeyError as error:
            print(error)
        task_prerun.send(sender=None)
        next_guard = interrupter()
        with next_guard:
            next_guard.interruptible(limit)
        """
    )

    assert said == ["'missing'", "limit"]


def test_child_gets_a_soft_limit_that_came_too_early_with_the_body() -> None:
    """A soft limit during the acquire is raised in place of the body."""
    said = say_in_child(
        """
        with guard:
            limit()
            print("taken")
            guard.interruptible(lambda: print("never"))
        """
    )

    assert said == ["taken", "limit"]


def test_soft_limit_that_comes_when_the_body_has_ended_is_dropped() -> None:
    """The body has returned in time: its result stands. The next task has a limit."""
    said = say_in_child(
        """
        with guard:
            guard.interruptible(lambda: print("body"))
            limit()
            print("released")
        print("result")
        with guard:
            guard.interruptible(limit)
        """
    )

    assert said == ["body", "released", "result", "limit"]


def test_child_that_has_failed_keeps_its_own_error() -> None:
    """A late soft limit does not replace the error of the body."""
    said = say_in_child(
        """
        try:
            with guard:
                try:
                    guard.interruptible(lambda: {}["missing"])
                finally:
                    limit()
        except KeyError as error:
            print(error)
        """
    )

    assert said == ["'missing'"]


def test_child_that_has_failed_gets_no_soft_limit_until_its_next_task() -> None:
    """A limit during the work of Celery and billiard would replace the result."""
    said = say_in_child(
        """
        from celery.signals import task_prerun
        try:
            with guard:
                {}["missing"]
        except KeyError as error:
            print(error)
        limit()
        with guard:
            print("released")
        limit()
        task_prerun.send(sender=None)
        limit()
        """
    )

    assert said == ["'missing'", "released", "limit"]


def test_task_that_calls_another_one_eagerly_keeps_its_soft_limit() -> None:
    """The end of the inner task, also in an error, is not the end of the outer one."""
    said = say_in_child(
        """
        def inner():
            try:
                with interrupter(within_task=True):
                    {}["missing"]
            except KeyError as error:
                print(error)
            limit()
        try:
            inner()
        except SoftLimit:
            print("limit")
        with guard:
            guard.interruptible(inner)
        """
    )

    assert said == ["'missing'", "limit"] * 2


def test_task_gets_a_limit_that_came_while_another_one_failed_within_it() -> None:
    """It came while the inner task had to be left alone, and is for the outer one."""
    said = say_in_child(
        """
        def inner():
            with interrupter(within_task=True):
                limit()
                {}["missing"]
        with guard:
            guard.interruptible(inner)
        """
    )

    assert said == ["limit"]


def test_eager_task_after_the_end_lets_no_limit_through() -> None:
    """A receiver of a signal may call one, while Celery stores the result."""
    said = say_in_child(
        """
        from types import SimpleNamespace
        from celery.signals import task_prerun
        eager = SimpleNamespace(request=SimpleNamespace(is_eager=True))
        try:
            with guard:
                {}["missing"]
        except KeyError:
            task_prerun.send(sender=None, task=eager)
        limit()
        print("alive")
        """
    )

    assert said == ["alive"]


def test_child_drops_an_interrupt_that_came_too_late() -> None:
    """A late interrupt is dropped, and is not raised as a soft limit either."""
    said = say_in_child(
        """
        with guard:
            guard.interruptible(lambda: None)
            guard.interrupt(LockLost("late"))
        print("alive")
        """
    )

    assert said == ["alive"]
