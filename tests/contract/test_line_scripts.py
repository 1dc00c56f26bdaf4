"""LINE_UP and STEP_OUT, reply by reply: who waits, in which order, who is passed over.

Nobody listens on these channels; ``tests/nodes/test_wait.py`` has people who do.
"""

from __future__ import annotations

import pytest

from celery_redlock.core.scripts import FREE, GRANTED, TAKEN
from tests.contract.subjects import NO_KEY, OTHER, SHORT, TTL, Subject, value


def test_line_up_tells_who_holds_the_lock(subject: Subject) -> None:
    """As INSPECT does, and one is in line, whether it is held or free."""
    assert subject.line_up() == [FREE]

    subject.acquire()
    status, said, left = subject.line_up()

    assert (status, said) == (TAKEN, value(1))
    assert TTL - 2000 < left <= TTL
    assert subject.in_line() == [b"w/1"]


def test_line_is_in_the_order_of_ranks(subject: Subject) -> None:
    """Whoever comes again keeps its place; of equals the names decide."""
    subject.line_up("b/1", rank=2)
    subject.line_up("c/1", rank=1_790_000_000_000_000)
    subject.line_up("a/2", rank=2)
    subject.line_up("d/1", rank=1)
    subject.line_up("b/1", rank=2)

    assert subject.in_line() == [b"d/1", b"a/2", b"b/1", b"c/1"]


def test_line_ends_when_nobody_comes_again(subject: Subject) -> None:
    """People who are gone without a word are not kept for ever."""
    subject.line_up(ttl_ms=TTL)
    assert TTL - 2000 < subject.pttl(subject.line) <= TTL

    subject.line_up("w/2", ttl_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.line) == NO_KEY)


def test_step_out_leaves_the_others_in_line(subject: Subject) -> None:
    """While somebody holds the lock nothing is passed on."""
    subject.acquire()
    subject.line_up("w/1")
    subject.line_up("w/2")

    assert subject.step_out("w/1") == [GRANTED, 0]
    assert subject.in_line() == [b"w/2"]
    assert subject.step_out("w/2") == subject.step_out("w/2") == [GRANTED, 0]
    assert subject.pttl(subject.line) == NO_KEY


def test_step_out_of_one_who_got_the_lock_passes_nothing_on(subject: Subject) -> None:
    """Also on a node that did not grant it."""
    subject.line_up("w/1")
    subject.line_up("w/2")

    assert subject.step_out("w/1", "") == [GRANTED, 0]
    assert subject.in_line() == [b"w/2"]


@pytest.mark.parametrize("how", ["release", "keep", "step_out"])
def test_waiters_who_do_not_listen_are_passed_over(subject: Subject, how: str) -> None:
    """A release, or who goes without, looks for one who hears it; here nobody does."""
    subject.acquire()
    subject.line_up("w/1")
    subject.line_up("w/2")

    if how == "step_out":
        subject.delete(subject.lock)
        subject.step_out("w/9")
    else:
        assert subject.release(keep_ms=TTL if how == "keep" else 0) == 1

    assert subject.in_line() == []


def test_release_of_what_is_not_ours_wakes_nobody(subject: Subject) -> None:
    """The lock is held as before."""
    subject.acquire(OTHER)
    subject.line_up()

    assert subject.release() == 0
    assert subject.in_line() == [b"w/1"]
