"""The backlog of a key, reply by reply: its order, its end, the mean of its runs."""

from __future__ import annotations

from typing import Any

from celery_redlock.scripts import (
    FIRST_IN_BACKLOG,
    GRANTED,
    JOIN_BACKLOG,
    LEAVE_BACKLOG,
    NOTE_RUN,
    NUMBER_IN_BACKLOG,
    READ_BACKLOG,
)
from tests.contract.subjects import NO_KEY, PATIENCE, SHORT, TTL, Subject

NOW = 1_795_246_614_184_112  # µs since 1970
WITHIN = TTL * 1000  # µs


def join(
    subject: Subject,
    task_id: str,
    since: int = NOW,
    *,
    within_us: int = WITHIN,
    late: str = "",
) -> Any:
    """Run JOIN_BACKLOG; return the place: before, waiting, run_us."""
    keys = [subject.key(part) for part in ("backlog", "return", "pace")]
    status, *place, _ = subject.run(
        JOIN_BACKLOG, keys, [task_id, since, within_us, late]
    )
    assert status == GRANTED
    return place


def leave(subject: Subject, task_id: str, known_us: int = 0) -> Any:
    """Run LEAVE_BACKLOG."""
    keys = [subject.key(part) for part in ("backlog", "return")]
    return subject.run(LEAVE_BACKLOG, keys, [task_id, known_us])


def number(
    subject: Subject, task_id: str, least: int = NOW, *, given: bool = False
) -> Any:
    """Run NUMBER_IN_BACKLOG; return the number."""
    keys = [subject.key(part) for part in ("backlog", "return", "number")]
    args = [task_id, least, WITHIN, "1" if given else ""]
    status, found = subject.run(NUMBER_IN_BACKLOG, keys, args)
    assert status == GRANTED
    return found


def first(subject: Subject) -> Any:
    """Run FIRST_IN_BACKLOG; return how many wait, and the id of the first."""
    keys = [subject.key(part) for part in ("backlog", "return")]
    status, *found = subject.run(FIRST_IN_BACKLOG, keys, ["any"])
    assert status == GRANTED
    return found


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


# -- numbers, for calls that run in order ------------------------------------------


def test_number_is_greater_than_all_before(subject: Subject) -> None:
    """Also where the clock of the publisher is late, and when no other call waits."""
    assert number(subject, "a", NOW) == NOW
    assert number(subject, "b", NOW - 5) == NOW + 1
    leave(subject, "a")
    leave(subject, "b")
    assert number(subject, "c", NOW) == NOW + 2
    assert number(subject, "d", NOW + 9) == NOW + 9

    assert waiting(subject) == [b"c", b"d"]
    assert join(subject, "d", NOW + 9) == [1, 2, 0]


def test_number_of_other_nodes_is_taken_as_it_is(subject: Subject) -> None:
    """The next one is greater than both."""
    number(subject, "a", NOW)
    number(subject, "b", NOW)

    assert number(subject, "a", NOW + 7, given=True) == NOW + 7
    assert number(subject, "c", NOW) == NOW + 8
    assert number(subject, "b", NOW + 1, given=True) == NOW + 1
    assert waiting(subject) == [b"b", b"a", b"c"]


def test_first_is_told_until_its_deadline(subject: Subject) -> None:
    """A call that was purged is first no longer than it lives."""
    assert first(subject) == [0, b""]
    join(subject, "gone", NOW, within_us=SHORT * 1000)
    join(subject, "next", NOW + 1)
    subject.wait_until(lambda: first(subject) == [1, b"next"])


def test_late_message_does_not_bring_back_a_call_that_has_left(
    subject: Subject,
) -> None:
    """Neither that of its publisher nor that of a worker. The call itself may come."""
    number(subject, "a")
    leave(subject, "a", WITHIN)

    assert number(subject, "a") == NOW + 1
    assert join(subject, "a", late="1") == [0, 0, 0]
    assert waiting(subject) == []

    assert join(subject, "a") == [0, 1, 0]
    assert join(subject, "a", late="1") == [0, 1, 0]


def test_call_that_has_left_is_forgotten(subject: Subject) -> None:
    """After some time, in which messages may be late."""
    leave(subject, "a", SHORT * 1000)

    subject.wait_until(lambda: subject.pttl(subject.key("return")) == NO_KEY)
    assert join(subject, "a", late="1") == [0, 1, 0]


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
        assert TTL - PATIENCE < left <= subject.longest(TTL + 1)


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
    assert TTL - PATIENCE < subject.pttl(subject.key("pace")) <= subject.longest(TTL)

    note(subject, 100, ttl_ms=SHORT)
    subject.wait_until(lambda: read(subject) == [0, 0])


def test_text_that_is_no_mean_counts_as_none(subject: Subject) -> None:
    """The next run replaces it."""
    subject.set(subject.key("pace"), "another program's")
    assert read(subject) == [0, 0]

    note(subject, 100)
    assert read(subject) == [0, 100]
