"""One script call to every node, and the votes that come back."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.core.ballot import Ballot, Vote, VoteKind
from celery_redlock.core.question import (
    Lesson,
    Question,
    UnreadableReply,
    by_everyone,
    by_majority,
    granted_or_hopeless,
    verdict_certain,
    vote_of,
)
from celery_redlock.core.scripts import ACQUIRE, INSPECT, RELEASE, Script
from celery_redlock.core.wire import ErrorReply, PythonReader

LABELS = ["a", "b", "c"]
VOTES = {
    "G": Vote(VoteKind.GRANTED, 1),
    "T": Vote(VoteKind.TAKEN, 1, "other"),
    "F": Vote(VoteKind.FREE),
    "Q": Vote(VoteKind.QUARANTINED, 1),
    "S": Vote(VoteKind.SILENT),
}


def question(script: Script = INSPECT, **options: Any) -> Question:
    """Return a question to three nodes."""
    keys, args = ["key"], ["token", 7, b"\x00"]
    return Question(
        script, keys, args, **{"labels": LABELS, "settle": by_everyone, **options}
    )


def ballot(votes: str) -> Ballot:
    """Return a ballot; a dot is a node that is still out."""
    filled = Ballot([f"node-{index}" for index in range(len(votes))])
    for index, letter in enumerate(votes):
        if letter != ".":
            filled.cast(index, VOTES[letter])
    return filled


def words(packed: bytes) -> list[bytes]:
    """Return the words of a command as a server reads them."""
    reader = PythonReader()
    reader.feed(packed)
    read: list[bytes] = reader.gets()
    assert reader.gets() is False
    return read


# -- votes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "vote"),
    [
        ([1, 42], Vote(VoteKind.GRANTED, 42)),
        ([1], Vote(VoteKind.GRANTED, 0)),
        ([2, b"t\n5\nf", 900], Vote(VoteKind.TAKEN, 900, "t\n5\nf")),
        ([2, b"t", -1], Vote(VoteKind.TAKEN, -1, "t")),
        ([2, b"\xff", 5], Vote(VoteKind.TAKEN, 5, "�")),
        ([3], Vote(VoteKind.FREE)),
        ([4, 61_200], Vote(VoteKind.QUARANTINED, 61_200)),
        ([4, -1], Vote(VoteKind.QUARANTINED, 0)),
        ([5, b"run"], Vote(VoteKind.UNSYNCED, value="run")),
        (
            [6, b"cfg"],
            Vote(VoteKind.REFUSED, value="cfg", reason="is set up differently"),
        ),
        (1, Vote(VoteKind.GRANTED)),
        (0, Vote(VoteKind.FREE)),
        (
            ErrorReply("OOM no memory"),
            Vote(VoteKind.REFUSED, reason="answered OOM no memory"),
        ),
    ],
    ids=str,
)
def test_reply_is_read_as_the_table_says(reply: Any, vote: Vote) -> None:
    """Each status of the scripts has one kind of vote."""
    assert vote_of(reply) == vote


@pytest.mark.parametrize("reply", [[7], [2], [b"?"], [], None, b"PONG"])
def test_reply_that_no_script_gives_is_no_vote(reply: Any) -> None:
    """It may be the answer to something else, and is never counted."""
    with pytest.raises(UnreadableReply):
        vote_of(reply)


# -- when to stop ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "certain"),
    [
        ("...", False),
        ("GG.", True),
        ("TT.", True),
        ("SS.", True),
        ("GT.", False),
        ("GTS", True),
        ("GS.", False),
    ],
)
def test_verdict_certain_stops_when_nothing_can_change(
    votes: str, *, certain: bool
) -> None:
    """For acquire: won, held and unreachable are told as soon as they are sure."""
    assert verdict_certain(ballot(votes)) is certain


@pytest.mark.parametrize(
    ("votes", "settled"),
    [
        ("...", False),
        ("GG.", True),
        ("GF.", False),
        ("FF.", True),
        ("GSF", True),
        ("TF.", True),
        ("FFG..", False),
        ("FFFG.", True),
    ],
)
def test_granted_or_hopeless_stops_for_a_majority_or_without_hope(
    votes: str, *, settled: bool
) -> None:
    """For renewals: who says no in which words does not matter."""
    assert granted_or_hopeless(ballot(votes)) is settled


@pytest.mark.parametrize(
    ("votes", "settled"),
    [("GF.", True), ("G..", False), ("GS.", False), ("GSS", True), ("TQ.", False)],
)
def test_by_majority_stops_when_a_majority_has_answered(
    votes: str, *, settled: bool
) -> None:
    """For releases: silence and quarantine are no answers, but end the waiting."""
    assert by_majority(ballot(votes)) is settled


@pytest.mark.parametrize(("votes", "settled"), [("GG.", False), ("GSF", True)])
def test_by_everyone_waits_for_all(votes: str, *, settled: bool) -> None:
    """For looking: a majority is not the whole picture."""
    assert by_everyone(ballot(votes)) is settled


# -- the question ------------------------------------------------------------------


def test_question_is_packed_once_for_all_nodes() -> None:
    """By its SHA, with the number of keys; the same bytes for everybody."""
    asked = question()

    assert words(asked.packed()) == [
        b"EVALSHA",
        INSPECT.sha.encode(),
        b"1",
        b"key",
        b"token",
        b"7",
        b"\x00",
    ]
    assert asked.packed() is asked.packed()


def test_question_brings_its_source_where_it_is_unknown() -> None:
    """The same call, with the Lua in place of its name."""
    asked = question()

    known, unknown = words(asked.packed()), words(asked.packed_source())

    assert unknown[:2] == [b"EVAL", INSPECT.source.encode()]
    assert unknown[2:] == known[2:]
    assert asked.packed_source() is asked.packed_source()


def test_release_always_brings_its_source() -> None:
    """Nobody may hear "forgotten" after all have gone on to other things."""
    asked = question(RELEASE)

    assert words(asked.packed())[:2] == [b"EVAL", RELEASE.source.encode()]
    assert asked.packed() is asked.packed_source()


def test_answers_are_entered_in_any_order() -> None:
    """Reply and vote go to the place of their node."""
    asked = question()

    asked.answer(2, [1, 9])
    asked.fail(0, "is gone")

    assert asked.replies == [None, None, [1, 9]]
    assert asked.ballot.numbers(VoteKind.GRANTED) == [9]
    assert asked.ballot.reasons() == "a is gone, b had not answered"
    assert not asked.is_settled()
    asked.answer(1, 0)
    assert asked.is_settled()


def test_node_cannot_answer_twice() -> None:
    """That would be an answer to something else."""
    asked = question()
    asked.answer(0, 1)

    with pytest.raises(ValueError, match="a has already voted"):
        asked.answer(0, 1)


def test_question_asked_again_has_no_votes() -> None:
    """The same bytes and patience, another ballot, and nobody who withdraws it."""
    asked = question(insist_until=5.0, insist_since=3.0, withdrawn=lambda: True)
    asked.answer(0, 1)

    again = asked.again()

    assert again.ballot.pending == 3
    assert again.replies == [None] * 3
    assert again.packed() == asked.packed()
    assert again.call == asked.call
    assert (again.insist_until, again.insist_since) == (5.0, 3.0)
    assert again.withdrawn is None


def test_lesson_teaches_a_script_and_expects_nothing() -> None:
    """It touches no key, and neither an answer nor silence changes anything."""
    lesson = Lesson(ACQUIRE)

    lesson.answer(0, ErrorReply("ERR"))
    lesson.fail(1, "is gone")

    assert words(lesson.packed()) == [b"SCRIPT", b"LOAD", ACQUIRE.source.encode()]
    assert lesson.insist_until == 0
