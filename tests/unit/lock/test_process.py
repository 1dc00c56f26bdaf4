"""State of one process: forgotten in a forked child, once and before it is used."""

from __future__ import annotations

import threading

import pytest

from celery_redlock.basics.process import OfOneProcess

DEADLINE = 60.0  # seconds for a thread; it is no measurement


class Shared(OfOneProcess):
    """State that takes a moment to forget.

    Attributes:
        forgets: Set when a thread has begun to forget.
        goes_on: Lets that thread go on.
        times: How often the state was forgotten.
        interruption: Raised in the middle.
    """

    interruption: BaseException | None = None

    def __init__(self) -> None:
        super().__init__()
        self.forgets, self.goes_on = threading.Event(), threading.Event()
        self.times = 0

    def forget_parent(self) -> None:
        """Forget, as soon as the test lets it."""
        self.forgets.set()
        assert self.goes_on.wait(DEADLINE)
        if self.interruption:
            raise self.interruption
        self.times += 1


def in_another_process() -> Shared:
    """Return state that another process has left, as a fork without hooks does."""
    state = Shared()
    state.pid -= 1
    return state


def test_no_thread_uses_the_state_of_the_parent_while_another_one_forgets_it() -> None:
    """It would write to the parent's sockets, and wait for the parent's locks."""
    state = in_another_process()
    seen: list[int] = []

    def use() -> None:
        state.notice_fork()
        seen.append(state.times)

    first, second = threading.Thread(target=use), threading.Thread(target=use)
    first.start()
    assert state.forgets.wait(DEADLINE)
    second.start()
    # The second one has no more to do than to wait, or it would end now.
    second.join(0.3)
    assert seen == []

    state.goes_on.set()
    first.join(DEADLINE)
    second.join(DEADLINE)
    assert seen == [1, 1]


def test_state_is_forgotten_again_after_an_interruption() -> None:
    """The next use forgets all of it: nothing is used that was forgotten in part."""
    state = in_another_process()
    state.goes_on.set()
    state.interruption = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        state.notice_fork()

    state.interruption = None
    state.notice_fork()
    assert state.times == 1
