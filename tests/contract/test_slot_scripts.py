"""What schedulers tell the nodes: the same of a node in memory and of real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.scripts import (
    GRANTED,
    MARK_SLOT,
    MISCONFIGURED,
    QUARANTINED,
    READ_SLOTS,
    RECORD_SLOTS,
    STAND_BY,
    STANDBYS,
    TAKEN,
    UNSYNCED,
)
from celery_redlock.core.wire import ErrorReply
from tests.contract.subjects import CONFIG, TTL

if TYPE_CHECKING:
    from tests.contract.subjects import Subject

SHORT = 30  # ms, for what is to end
NO_KEY = -2  # what PTTL says


def slots(subject: Subject) -> str:
    """Return the name of the key with the slots."""
    return f"{subject.prefix}:slots:a"


def standby(subject: Subject) -> str:
    """Return the name of the key with who stands by."""
    return f"{subject.prefix}:standby:a"


def record(subject: Subject, *pairs: Any, ttl_ms: int = TTL) -> Any:
    """Run RECORD_SLOTS."""
    return subject.run(RECORD_SLOTS, [slots(subject)], [ttl_ms, *pairs])


def read(subject: Subject, config: str = "") -> Any:
    """Run READ_SLOTS; without the restart guard unless there is a config."""
    keys = [slots(subject), subject.meta, subject.quarantine]
    reply = subject.run(READ_SLOTS, keys, [config])
    if reply[0] == GRANTED:
        return dict(zip(reply[1::2], reply[2::2], strict=True))
    return reply


def mark(subject: Subject, task_id: str, ttl_ms: int = TTL) -> Any:
    """Run MARK_SLOT."""
    return subject.run(MARK_SLOT, [f"{subject.prefix}:ran:s"], [task_id, ttl_ms])


def stand_by(subject: Subject, who: str, ttl_ms: int = TTL) -> Any:
    """Run STAND_BY."""
    return subject.run(STAND_BY, [standby(subject)], [who, ttl_ms])


def standbys(subject: Subject) -> set[bytes]:
    """Run STANDBYS."""
    status, *names = subject.run(STANDBYS, [standby(subject)], [])
    assert status == GRANTED
    return set(names)


# -- RECORD_SLOTS and READ_SLOTS -------------------------------------------------


def test_record_is_read_again(subject: Subject) -> None:
    """Each entry has one instant, in full: a microsecond more is another slot."""
    assert record(subject, "a", 1795246614184112, "b", 7) == [GRANTED, 0]

    assert read(subject) == {b"a": b"1795246614184112", b"b": b"7"}


def test_record_only_grows(subject: Subject) -> None:
    """A late note of a leader of the past takes nothing back."""
    record(subject, "a", 5, "b", 5)
    record(subject, "a", 4, "b", 6)

    assert read(subject) == {b"a": b"5", b"b": b"6"}


def test_record_forgets_an_entry_when_told(subject: Subject) -> None:
    """No instant means no entry; one that was never there is no mistake."""
    record(subject, "a", 5, "b", 5)

    assert record(subject, "a", "", "never", "") == [GRANTED, 0]
    assert read(subject) == {b"b": b"5"}
    record(subject, "b", "")
    assert subject.pttl(slots(subject)) == NO_KEY


def test_record_takes_any_name(subject: Subject) -> None:
    """Entries are called what people call them."""
    name = "Täglich: 3 Uhr\n(Import)@"

    record(subject, name, 5)

    assert read(subject) == {name.encode(): b"5"}


def test_record_begins_its_ttl_anew_with_each_note(subject: Subject) -> None:
    """Nothing stays for ever."""
    record(subject, "a", 5, ttl_ms=SHORT)
    record(subject, "a", 4)
    assert SHORT < subject.pttl(slots(subject)) <= TTL

    record(subject, "a", 6, ttl_ms=SHORT)
    subject.wait_until(lambda: read(subject) == {})


def test_read_of_nothing_is_empty(subject: Subject) -> None:
    """A new schedule has no past."""
    assert read(subject) == {}


def test_read_of_a_node_that_votes(subject: Subject) -> None:
    """It has not been restarted since it was admitted."""
    subject.initialize()
    record(subject, "a", 5)

    assert read(subject, CONFIG) == {b"a": b"5"}


def test_read_of_a_node_that_may_have_forgotten_is_refused(subject: Subject) -> None:
    """A node that is not known to have kept its memory says so, in each state."""
    record(subject, "a", 5)
    assert read(subject, CONFIG) == [UNSYNCED, subject.run_id]

    assert subject.acquire(config=CONFIG)[0] == QUARANTINED
    status, left = read(subject, CONFIG)
    assert (status, 0 < left <= 61_000) == (QUARANTINED, True)


def test_read_after_quarantine_needs_no_fences(subject: Subject) -> None:
    """What it was told since it came back it knows, whoever recovers its fences."""
    subject.acquire(config=CONFIG)
    subject.forget("quarantine")
    record(subject, "a", 5)

    assert subject.acquire(config=CONFIG)[0] == UNSYNCED
    assert read(subject, CONFIG) == {b"a": b"5"}


def test_read_with_another_config_is_refused(subject: Subject) -> None:
    """A node of another deployment has another majority."""
    subject.initialize("another")

    assert read(subject, CONFIG) == [MISCONFIGURED, b"another"]


# -- MARK_SLOT ---------------------------------------------------------------------


def test_mark_is_for_the_first(subject: Subject) -> None:
    """The first task stands for a slot; a second is told by whom it is."""
    assert mark(subject, "task-1") == [GRANTED, 0]

    status, first, left = mark(subject, "task-2")

    assert (status, first, 0 < left <= TTL) == (TAKEN, b"task-1", True)


def test_mark_by_the_same_task_is_granted_again(subject: Subject) -> None:
    """A redelivery is the same task."""
    mark(subject, "task-1", SHORT)

    assert mark(subject, "task-1") == [GRANTED, 0]
    assert subject.pttl(f"{subject.prefix}:ran:s") > SHORT


def test_mark_ends(subject: Subject) -> None:
    """It is kept for as long as a second message may come."""
    mark(subject, "task-1", SHORT)

    subject.wait_until(lambda: mark(subject, "task-2") == [GRANTED, 0])


# -- STAND_BY and STANDBYS -----------------------------------------------------------


def test_standbys_are_those_who_said_so(subject: Subject) -> None:
    """Twice is once."""
    assert standbys(subject) == set()

    assert stand_by(subject, "a") == stand_by(subject, "b") == [GRANTED, 0]
    stand_by(subject, "a")

    assert standbys(subject) == {b"a", b"b"}


def test_standby_leaves_the_list(subject: Subject) -> None:
    """Who was elected, or ends, is struck out; the last one takes the list along."""
    stand_by(subject, "a")
    stand_by(subject, "b")

    assert stand_by(subject, "a", 0) == [GRANTED, 0]
    assert standbys(subject) == {b"b"}
    stand_by(subject, "b", 0)
    assert subject.pttl(standby(subject)) == NO_KEY


def test_standby_ends_by_itself(subject: Subject) -> None:
    """One that was killed is not listed for ever, beside one that lives."""
    stand_by(subject, "lives")
    stand_by(subject, "killed", SHORT)
    assert standbys(subject) == {b"lives", b"killed"}

    subject.wait_until(lambda: standbys(subject) == {b"lives"})

    assert subject.pttl(standby(subject)) > SHORT
    stand_by(subject, "another")
    assert set(subject.hgetall(standby(subject))) == {b"lives", b"another"}


# -- all of them -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["record", "read", "mark", "stand_by", "standbys"])
def test_key_of_another_type_is_an_error_reply(subject: Subject, call: str) -> None:
    """Somebody else's key of that name is an error of that node, and no crash."""
    for key in (slots(subject), standby(subject)):
        subject.set(key, "theirs")
    subject.hset(f"{subject.prefix}:ran:s", "field", "theirs")
    calls = {
        "record": lambda: record(subject, "a", 5),
        "read": lambda: subject.run(
            READ_SLOTS, [slots(subject), subject.meta, subject.quarantine], [""]
        ),
        "mark": lambda: mark(subject, "task-1"),
        "stand_by": lambda: stand_by(subject, "a"),
        "standbys": lambda: subject.run(STANDBYS, [standby(subject)], []),
    }

    reply = calls[call]()

    assert isinstance(reply, ErrorReply)
    assert "WRONGTYPE" in str(reply)
