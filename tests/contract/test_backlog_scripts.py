"""The backlog of a key, reply by reply: its order, its end, the mean of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.scripts import (
    GRANTED,
    JOIN_BACKLOG,
    LEAVE_BACKLOG,
    NOTE_RUN,
    READ_BACKLOG,
)
from tests.contract.subjects import NO_KEY, SHORT, TTL

if TYPE_CHECKING:
    from tests.contract.subjects import Subject

NOW = 1_795_246_614_184_112  # µs since 1970
WITHIN = TTL * 1000  # µs


def join(
    subject: Subject, task_id: str, since: int = NOW, *, within_us: int = WITHIN
) -> Any:
    """Run JOIN_BACKLOG; return the place: before, waiting, run_us."""
    keys = [subject.key(part) for part in ("backlog", "return", "pace")]
    status, *place = subject.run(JOIN_BACKLOG, keys, [task_id, since, within_us])
    assert status == GRANTED
    return place


def leave(subject: Subject, task_id: str) -> Any:
    """Run LEAVE_BACKLOG."""
    keys = [subject.key(part) for part in ("backlog", "return")]
    return subject.run(LEAVE_BACKLOG, keys, [task_id])


def read(subject: Subject) -> Any:
    """Run READ_BACKLOG; return waiting and run_us."""
    keys = [subject.key(part) for part in ("backlog", "pace")]
    status, *found = subject.run(READ_BACKLOG, keys, [])
    assert status == GRANTED
    return found


def note(subject: Subject, *runs_us: int, most: int = 4, ttl_ms: int = TTL) -> None:
    """Run NOTE_RUN for each of these runs."""
    for run_us in runs_us:
        args = [run_us, most, ttl_ms]
        assert subject.run(NOTE_RUN, [subject.key("pace")], args) == [GRANTED, 0]


def waiting(subject: Subject) -> list[bytes]:
    """Return the calls in the backlog, in its order."""
    return subject.waiters(subject.key("backlog"))


# -- the order ---------------------------------------------------------------------


def test_place_is_in_the_order_of_publishing(subject: Subject) -> None:
    """Not in that of the refusals. Equal instants are ordered by the ids."""
    assert join(subject, "c", NOW) == [0, 1, 0]
    assert join(subject, "b", NOW + 2) == [1, 2, 0]
    assert join(subject, "a", NOW + 1) == [1, 3, 0]
    assert join(subject, "d", NOW + 1) == [2, 4, 0]

    assert waiting(subject) == [b"c", b"a", b"d", b"b"]


def test_call_that_joins_again_keeps_its_place(subject: Subject) -> None:
    """It is there once."""
    for task_id, since in (("a", NOW), ("b", NOW + 1), ("c", NOW + 2)):
        join(subject, task_id, since)

    assert join(subject, "b", NOW + 1) == [1, 3, 0]


def test_call_that_leaves_makes_room(subject: Subject) -> None:
    """To leave twice is harmless, and an empty backlog has no key."""
    join(subject, "a", NOW)
    join(subject, "b", NOW + 1)

    assert leave(subject, "a") == [GRANTED, 0]
    assert leave(subject, "a") == [GRANTED, 0]
    assert join(subject, "b", NOW + 1) == [0, 1, 0]

    leave(subject, "b")
    for part in ("backlog", "return"):
        assert subject.pttl(subject.key(part)) == NO_KEY


def test_read_changes_nothing(subject: Subject) -> None:
    """It tells how many calls wait, also none."""
    assert read(subject) == [0, 0]
    join(subject, "a")
    note(subject, 700)

    assert read(subject) == [1, 700]
    assert waiting(subject) == [b"a"]


# -- its end -----------------------------------------------------------------------


def test_call_that_does_not_come_back_is_taken_out(subject: Subject) -> None:
    """By the next call that joins."""
    join(subject, "stays", NOW)
    join(subject, "gone", NOW + 1, within_us=SHORT * 1000)

    subject.wait_until(lambda: join(subject, "next", NOW + 2)[0] == 1)

    assert waiting(subject) == [b"stays", b"next"]
    assert set(subject.waiters(subject.key("return"))) == {b"stays", b"next"}


def test_calls_that_do_not_come_back_are_taken_out_by_and_by(subject: Subject) -> None:
    """A hundred at a time, so that a join takes no long time."""
    for number in range(101):
        subject.zadd(subject.key("backlog"), f"gone-{number:03}", NOW + number)
        subject.zadd(subject.key("return"), f"gone-{number:03}", 1 + number)

    join(subject, "next", NOW + 1000)

    assert waiting(subject) == [b"gone-100", b"next"]


def test_call_that_joins_again_has_a_new_deadline(subject: Subject) -> None:
    """A later one for a call that waits on, or an earlier one."""
    join(subject, "late", NOW, within_us=SHORT * 1000)
    join(subject, "late", NOW, within_us=WITHIN)
    join(subject, "soon", NOW + 1, within_us=WITHIN)
    join(subject, "soon", NOW + 1, within_us=SHORT * 1000)

    subject.wait_until(lambda: join(subject, "next", NOW + 2) == [1, 2, 0])

    assert waiting(subject) == [b"late", b"next"]


def test_backlog_ends_with_the_last_deadline(subject: Subject) -> None:
    """A key that no call joins any more does not stay."""
    join(subject, "a")

    for part in ("backlog", "return"):
        left = subject.pttl(subject.key(part))
        assert TTL - 5000 < left <= subject.longest(TTL + 1)


def test_call_with_less_time_does_not_shorten_the_backlog(subject: Subject) -> None:
    """The ttl is that of the call that may take longest."""
    join(subject, "a", within_us=3 * WITHIN)

    join(subject, "b", NOW + 1)

    assert subject.pttl(subject.key("backlog")) > 2 * TTL


# -- how long runs take ------------------------------------------------------------


def test_mean_of_the_first_runs_is_exact(subject: Subject) -> None:
    """The first run counts in full, and no time of zero goes before it."""
    note(subject, 600)
    assert read(subject) == [0, 600]
    note(subject, 300)
    assert read(subject) == [0, 450]
    note(subject, 900)
    assert join(subject, "a") == [0, 1, 600]


def test_later_runs_count_more_than_earlier_ones(subject: Subject) -> None:
    """Each has a quarter of the weight here. A mean is never 0."""
    note(subject, 100, 100, 100, 100, 500)
    assert read(subject) == [0, 200]
    note(subject, 0)
    assert read(subject) == [0, 150]
    note(subject, *[0] * 40)
    assert read(subject) == [0, 1]


def test_mean_ends_some_time_after_the_last_run(subject: Subject) -> None:
    """Each run begins the time anew."""
    note(subject, 100)
    assert TTL - 2000 < subject.pttl(subject.key("pace")) <= subject.longest(TTL)

    note(subject, 100, ttl_ms=SHORT)
    subject.wait_until(lambda: read(subject) == [0, 0])


def test_text_that_is_no_mean_counts_as_none(subject: Subject) -> None:
    """The next run replaces it."""
    subject.set(subject.key("pace"), "another program's")
    assert read(subject) == [0, 0]

    note(subject, 100)
    assert read(subject) == [0, 100]
