"""The record of sent slots: the next leader learns what earlier ones sent."""

from __future__ import annotations

import itertools
import logging

import pytest

from celery_redlock.errors import QuorumUnreachable
from celery_redlock.locks.redlock import Redlock
from celery_redlock.records.beat_slots import (
    MOST_SLOT,
    SlotRecord,
    mark_slot,
)
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.lock.support import Site

KEY = "beat:project"
NOON = 1_795_262_400_000_000
SECOND = 1_000_000
MOST = 10_000


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still, at noon and one minute."""
    return FakeClock(wall=NOON / SECOND + 60)


@pytest.fixture
def record(redlock: Redlock) -> SlotRecord:
    """Give the record of a leader that has read the notes."""
    return loaded(redlock)


def loaded(redlock: Redlock) -> SlotRecord:
    """Return the record of a new leader."""
    record = SlotRecord(redlock, KEY)
    record.load()
    return record


def successor(nodes: FakeNodes) -> SlotRecord:
    """Return the record of a new leader in another process."""
    return loaded(nodes.another_client().redlock())


# -- the record --------------------------------------------------------------------


def test_successor_learns_what_was_sent(record: SlotRecord, nodes: FakeNodes) -> None:
    """The instant is exact to the microsecond."""
    record.note({"nightly": NOON + 1})
    record.note({"hourly": NOON})

    learnt = successor(nodes)

    assert {name: learnt.upto(name) for name in learnt} == {
        "nightly": NOON + 1,
        "hourly": NOON,
    }
    assert learnt.upto("never sent") is None


def test_schedules_have_records_of_their_own(site: Site, record: SlotRecord) -> None:
    """Two projects on the same nodes may both call an entry "cleanup"."""
    record.note({"cleanup": NOON})

    other = SlotRecord(site.nodes.another_client().redlock(), "beat:other")
    other.load()

    assert other.upto("cleanup") is None


@pytest.mark.parametrize("away", list(itertools.combinations(range(5), 2)))
@pytest.mark.parametrize("later", [(0, 1), (1, 4), (2, 3)])
def test_note_survives_any_minority(
    site: Site, record: SlotRecord, away: tuple[int, int], later: tuple[int, int]
) -> None:
    """Any two nodes may be away during the note, and any other two during the read."""
    other = site.nodes.another_client()
    redlock = other.redlock()
    site.nodes.partition(*away)
    record.note({"e": NOON})

    other.partition(*later)

    assert loaded(redlock).upto("e") == NOON


def test_reading_needs_a_majority(record: SlotRecord, nodes: FakeNodes) -> None:
    """A leader that cannot read does not send."""
    record.note({"e": NOON})
    nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable, match=r"Only 2 of 5 nodes.*No slot is sent"):
        record.load()


def test_node_that_may_have_forgotten_is_not_read(
    site: Site, record: SlotRecord
) -> None:
    """Three nodes know the note; two of them restart empty, and are not read."""
    site.nodes.partition(0, 1)
    record.note({"e": NOON})
    site.nodes.heal()
    for index in (2, 3):
        site.nodes.nodes[index].restart()
    other = site.nodes.another_client().redlock()

    other.check()  # nodes notice that they have forgotten
    assert loaded(other).upto("e") == NOON
    site.nodes.nodes[4].kill()
    with pytest.raises(QuorumUnreachable, match="quarantine"):
        loaded(other)


def test_note_that_is_not_confirmed_is_sent_again(
    site: Site, record: SlotRecord
) -> None:
    """A majority that was away for a moment gets it with the next flush."""
    for node in site.nodes.nodes[:3]:
        node.kill()
    record.note({"e": NOON})
    record.note({"f": NOON})
    assert not record.flush()
    assert record.upto("e") == NOON

    for node in site.nodes.nodes[:3]:
        node.restart()

    assert record.flush()
    for node in site.nodes.nodes:
        noted = node.memory.redis.hgetall(b"redlock:slots:beat:project")
        assert noted.keys() == {b"e", b"f"}


def test_load_keeps_own_notes(nodes: FakeNodes, record: SlotRecord) -> None:
    """A leader that could not note a slot, and leads again, still knows it."""
    nodes.mute(0, 1, 2)
    nodes.partition(0, 1, 2)
    record.note({"e": NOON})
    nodes.heal()

    record.load()

    assert record.upto("e") == NOON


def test_node_that_was_away_learns_from_the_next_leader(
    site: Site, record: SlotRecord
) -> None:
    """So that more than a bare majority knows the slot."""
    site.nodes.partition(0, 1)
    record.note({"e": NOON})
    site.nodes.heal()
    site.nodes.nodes[4].kill()

    successor(site.nodes).flush()

    for node in site.nodes.nodes[:2]:
        noted = node.memory.redis.hgetall(b"redlock:slots:beat:project")
        assert noted == {b"e": str(NOON).encode()}


@pytest.mark.long
def test_record_is_bounded(nodes: FakeNodes, record: SlotRecord) -> None:
    """Entries come and go; the oldest are forgotten."""
    for number in range(MOST):
        record.note({f"once-{number}": NOON + number})

    record.note({"daily": NOON + MOST})

    learnt = successor(nodes)
    assert len(list(learnt)) == MOST - MOST // 10 + 1
    assert learnt.upto("once-0") is None
    assert learnt.upto("daily") == NOON + MOST


def test_clock_that_was_far_ahead_silences_no_entry(
    site: Site, record: SlotRecord, caplog: pytest.LogCaptureFixture
) -> None:
    """A note that is a year ahead leads to a warning; one a little ahead does not."""
    record.note({"year": NOON + 365 * 86_400 * SECOND})
    record.note({"seconds": round(site.clock.wall() * 1e6) + 30 * SECOND})

    with caplog.at_level(logging.WARNING, "celery_redlock.records.beat_slots"):
        learnt = successor(site.nodes)

    assert learnt.upto("year") == round(site.clock.wall() * 1e6)
    assert learnt.upto("seconds") == round(site.clock.wall() * 1e6) + 30 * SECOND
    (warning,) = caplog.messages
    assert "'year'" in warning
    assert "Check the clocks" in warning


# -- one slot, two messages ----------------------------------------------------------


def test_slot_has_the_same_name_in_every_beat(
    record: SlotRecord, nodes: FakeNodes
) -> None:
    """It has the election, the entry and the due time."""
    name = "beat:project/nightly@2026-11-21T12:00:00.250000+00:00"

    assert record.slot_name("nightly", NOON + 250_000) == name
    assert successor(nodes).slot_name("nightly", NOON + 250_000) == name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("beat:shop", "cleanup"), ("beat:billing", "cleanup")),
        (("beat:a", "b/c"), ("beat:a/b", "c")),
        (("beat:a/b", "c"), ("beat:a%2Fb", "c")),
        (("b" * 5000 + "1", "c"), ("b" * 5000 + "2", "c")),
        (("b", "c" * 5000 + "1"), ("b", "c" * 5000 + "2")),
    ],
)
def test_slots_of_two_schedules_have_two_names(
    redlock: Redlock, one: tuple[str, str], other: tuple[str, str]
) -> None:
    """A task of one app is no second message for an entry of another app."""
    names = {
        SlotRecord(redlock, election).slot_name(entry, NOON)
        for election, entry in (one, other)
    }

    assert len(names) == 2
    assert max(len(name) for name in names) <= MOST_SLOT


def test_first_task_marks_the_slot(site: Site) -> None:
    """A second task learns its id; a redelivery of the first is no second task."""
    other = site.nodes.another_client().redlock()

    assert mark_slot(site.redlock, "s", "task-1") is None
    assert mark_slot(other, "s", "task-2") == "task-1"
    assert mark_slot(other, "s", "task-1") is None
    assert mark_slot(other, "another", "task-2") is None


def test_look_at_a_slot_does_not_mark_it(site: Site) -> None:
    """A task that only looks leaves the slot to the one that begins."""
    assert mark_slot(site.redlock, "s", "task-1", only_looks=True) is None
    assert mark_slot(site.redlock, "s", "task-2") is None
    assert mark_slot(site.redlock, "s", "task-1", only_looks=True) == "task-2"


def test_mark_is_known_to_any_majority(site: Site) -> None:
    """Nodes without the mark are a minority."""
    site.nodes.partition(0, 1)
    mark_slot(site.redlock, "s", "task-1")
    site.nodes.heal()

    assert mark_slot(site.nodes.another_client().redlock(), "s", "task-2") == "task-1"


def test_task_runs_if_nodes_cannot_tell(site: Site) -> None:
    """Only a known duplicate is dropped; after an hour no message is on its way."""
    mark_slot(site.redlock, "s", "task-1")
    site.nodes.freeze(0, 1, 2)
    assert mark_slot(site.redlock, "s", "task-2") is None
    site.nodes.thaw()
    assert mark_slot(site.redlock, "s", "task-2") == "task-1"

    site.clock.sleep(3601)

    assert mark_slot(site.redlock, "s", "task-2") is None
