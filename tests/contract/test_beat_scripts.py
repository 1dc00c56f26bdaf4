"""The scripts of schedulers, reply by reply: slots that were sent, and standbys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import (
    GRANTED,
    LIST_STANDBYS,
    MARK_SLOT,
    MISCONFIGURED,
    QUARANTINED,
    READ_SLOTS,
    RECORD_SLOTS,
    RECORD_STANDBY,
    TAKEN,
    UNSYNCED,
)
from tests.contract.subjects import CONFIG, NO_KEY, SHORT, TTL

if TYPE_CHECKING:
    from tests.contract.subjects import Subject


def slots(subject: Subject) -> str:
    """Return the key of the slots."""
    return subject.key("slots:a")


def marked(subject: Subject) -> str:
    """Return the key of one slot's mark."""
    return subject.key("ran:s")


def standby(subject: Subject) -> str:
    """Return the key of the standbys."""
    return subject.key("standby:a")


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
    return subject.run(MARK_SLOT, [marked(subject)], [task_id, ttl_ms])


def stand_by(subject: Subject, name: str, ttl_ms: int = TTL) -> Any:
    """Run RECORD_STANDBY."""
    return subject.run(RECORD_STANDBY, [standby(subject)], [name, ttl_ms])


def standbys(subject: Subject) -> set[bytes]:
    """Run LIST_STANDBYS."""
    status, *names = subject.run(LIST_STANDBYS, [standby(subject)], [])
    assert status == GRANTED
    return set(names)


# -- RECORD_SLOTS and READ_SLOTS -----------------------------------------------


def test_record_is_read_again(subject: Subject) -> None:
    """Each entry has one instant, to the microsecond."""
    assert record(subject, "a", 1795246614184112, "b", 7) == [GRANTED, 0]

    assert read(subject) == {b"a": b"1795246614184112", b"b": b"7"}


def test_record_only_grows(subject: Subject) -> None:
    """A late record of an earlier leader changes nothing."""
    record(subject, "a", 5, "b", 5)
    record(subject, "a", 4, "b", 6)

    assert read(subject) == {b"a": b"5", b"b": b"6"}


def test_record_without_an_instant_deletes_the_entry(subject: Subject) -> None:
    """An entry that was never there is no error. The last one takes the key along."""
    record(subject, "a", 5, "b", 5)

    assert record(subject, "a", "", "never", "") == [GRANTED, 0]
    assert read(subject) == {b"b": b"5"}
    record(subject, "b", "")
    assert subject.pttl(slots(subject)) == NO_KEY


def test_record_takes_any_name(subject: Subject) -> None:
    """Names of schedule entries are free text."""
    name = "Täglich: 3 Uhr\n(Import)@"

    record(subject, name, 5)

    assert read(subject) == {name.encode(): b"5"}


def test_record_starts_its_ttl_anew(subject: Subject) -> None:
    """The records expire when no scheduler writes any more."""
    record(subject, "a", 5, ttl_ms=SHORT)
    record(subject, "a", 4)
    assert SHORT < subject.pttl(slots(subject)) <= TTL

    record(subject, "a", 6, ttl_ms=SHORT)
    subject.wait_until(lambda: read(subject) == {})


def test_read_of_a_voting_node_returns_its_records(subject: Subject) -> None:
    """The node has not been restarted since it was admitted."""
    subject.initialize()
    assert read(subject, CONFIG) == {}

    record(subject, "a", 5)

    assert read(subject, CONFIG) == {b"a": b"5"}


def test_read_of_a_node_that_may_have_forgotten_is_refused(subject: Subject) -> None:
    """The node may have lost records before its start, in each of these states."""
    record(subject, "a", 5)
    assert read(subject, CONFIG) == [UNSYNCED, subject.run_id]

    assert subject.acquire(config=CONFIG)[0] == QUARANTINED
    status, left = read(subject, CONFIG)
    assert (status, 0 < left <= 61_000) == (QUARANTINED, True)


def test_read_after_quarantine_needs_no_fences(subject: Subject) -> None:
    """The node has all records since its start, before its fences are recovered."""
    subject.acquire(config=CONFIG)
    subject.delete(subject.quarantine)
    record(subject, "a", 5)

    assert subject.acquire(config=CONFIG)[0] == UNSYNCED
    assert read(subject, CONFIG) == {b"a": b"5"}


def test_read_with_another_config_is_refused(subject: Subject) -> None:
    """A node of another deployment belongs to another majority."""
    subject.initialize("another")

    assert read(subject, CONFIG) == [MISCONFIGURED, b"another"]


# -- MARK_SLOT -----------------------------------------------------------------


def test_mark_is_for_the_first(subject: Subject) -> None:
    """The reply to a second task has the id of the first one."""
    assert mark(subject, "task-1") == [GRANTED, 0]

    status, first, left = mark(subject, "task-2")

    assert (status, first, 0 < left <= TTL) == (TAKEN, b"task-1", True)


def test_mark_by_the_same_task_is_granted_again(subject: Subject) -> None:
    """A redelivered message has the same task id."""
    mark(subject, "task-1", SHORT)

    assert mark(subject, "task-1") == [GRANTED, 0]
    assert subject.pttl(marked(subject)) > SHORT


def test_mark_expires(subject: Subject) -> None:
    """After its ttl another task may mark the slot."""
    mark(subject, "task-1", SHORT)

    subject.wait_until(lambda: mark(subject, "task-2") == [GRANTED, 0])


# -- RECORD_STANDBY and LIST_STANDBYS ------------------------------------------


def test_standbys_are_those_that_were_recorded(subject: Subject) -> None:
    """A standby that is recorded twice is listed once."""
    assert standbys(subject) == set()

    assert stand_by(subject, "a") == stand_by(subject, "b") == [GRANTED, 0]
    stand_by(subject, "a")

    assert standbys(subject) == {b"a", b"b"}


def test_standby_can_leave_the_list(subject: Subject) -> None:
    """A standby that was elected, or ends, is removed. The last one deletes the key."""
    stand_by(subject, "a")
    stand_by(subject, "b")

    assert stand_by(subject, "a", 0) == [GRANTED, 0]
    assert standbys(subject) == {b"b"}
    stand_by(subject, "b", 0)
    assert subject.pttl(standby(subject)) == NO_KEY


def test_standby_expires(subject: Subject) -> None:
    """A standby that was killed is not listed for ever, beside one that lives."""
    stand_by(subject, "lives")
    stand_by(subject, "killed", SHORT)
    assert standbys(subject) == {b"lives", b"killed"}

    subject.wait_until(lambda: standbys(subject) == {b"lives"})

    assert subject.pttl(standby(subject)) > SHORT
    stand_by(subject, "another")
    assert set(subject.hgetall(standby(subject))) == {b"lives", b"another"}
