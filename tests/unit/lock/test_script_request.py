"""One script call to every node, and the votes that come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock import scripts
from celery_redlock.basics.resp import ErrorReply, PythonReader
from celery_redlock.errors import ConfigurationError
from celery_redlock.scripts import ALL_SCRIPTS, INSPECT, Script
from celery_redlock.wire.quorum import Ballot, Vote, VoteKind
from celery_redlock.wire.requests import (
    ScriptRequest,
    UnreadableReply,
    all_answered,
    grant_is_decided,
    majority_answered,
    verdict_is_certain,
    vote_of,
)
from tests.unit.lock.support import ballot_of

LABELS = ["a", "b", "c"]
VOTES = {
    "G": Vote(VoteKind.GRANTED, 1),
    "T": Vote(VoteKind.TAKEN, 1, "other"),
    "F": Vote(VoteKind.FREE),
    "Q": Vote(VoteKind.QUARANTINED, 1),
    "S": Vote(VoteKind.SILENT),
}


def request(script: Script = INSPECT, **options: Any) -> ScriptRequest:
    """Return a request to three nodes."""
    keys, args = ["key"], ["token", 7, b"\x00"]
    return ScriptRequest(
        script, keys, args, **{"labels": LABELS, "done_when": all_answered, **options}
    )


def ballot(votes: str) -> Ballot:
    """Return a ballot; a dot is an outstanding vote."""
    return ballot_of([VOTES.get(letter) for letter in votes])


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
            Vote(
                VoteKind.REFUSED,
                value="cfg",
                reason="has another view of the deployment",
            ),
        ),
        (
            ErrorReply("OOM no memory"),
            Vote(VoteKind.REFUSED, reason="answered OOM no memory"),
        ),
    ],
    ids=str,
)
def test_reply_is_read_by_the_table_of_statuses(reply: Any, vote: Vote) -> None:
    """Each status is one kind of vote."""
    assert vote_of(reply) == vote


def test_only_a_release_is_answered_by_a_bare_number() -> None:
    """A number from a node that runs another script is no vote."""
    assert vote_of(1, scripts.RELEASE) == Vote(VoteKind.GRANTED)
    assert vote_of(0, scripts.RELEASE) == Vote(VoteKind.FREE)
    for number in (0, 1, 2**63 - 1):
        with pytest.raises(UnreadableReply):
            vote_of(number, scripts.ACQUIRE)


items = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


replies = items | st.lists(items).map(lambda more: [1, *more])


@given(replies, st.sampled_from(ALL_SCRIPTS))
def test_any_reply_is_a_vote_or_unreadable(reply: Any, script: Script) -> None:
    """No reply is another error, and a vote has a number and a text."""
    try:
        vote = vote_of(reply, script)
    except UnreadableReply:
        return
    assert type(vote.number) is int
    assert type(vote.value) is str


@pytest.mark.parametrize(
    "reply",
    [
        *([7], [2], [b"?"], [], None, b"PONG", [2, 5, 900], [5, 1], 1, 0),
        *([1, b"5"], [1, None], [1, -5], [1, 5, 5], [2, b"t", b"9"], [2, b"t", None]),
        *([4, b"x"], [4, None], [2, b"t", 5, b"u", b"6", 7], [[1], 5], [1, [5]]),
    ],
    ids=str,
)
def test_unknown_reply_is_no_vote(reply: Any) -> None:
    """It may be the reply to another command."""
    with pytest.raises(UnreadableReply):
        vote_of(reply)


# -- when a request is done --------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "certain"),
    [
        ("...", False),
        ("GG.", True),
        ("TT.", True),
        ("SS.", False),  # the error says why the third does not vote, if it does not
        ("SSS", True),
        ("GT.", False),
        ("GTS", True),
        ("GS.", False),
    ],
)
def test_verdict_is_certain_when_no_vote_can_change_it(
    votes: str, *, certain: bool
) -> None:
    """For acquire: it ends when won, held or unreachable is sure."""
    assert verdict_is_certain(ballot(votes)) is certain


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
def test_grant_is_decided_by_a_majority_or_without_hope(
    votes: str, *, settled: bool
) -> None:
    """For renewals: the kind of the other votes does not matter."""
    assert grant_is_decided(ballot(votes)) is settled


@pytest.mark.parametrize(
    ("votes", "settled"),
    [("GF.", True), ("G..", False), ("GS.", False), ("GSS", True), ("TQ.", False)],
)
def test_majority_answered_counts_votes(votes: str, *, settled: bool) -> None:
    """For releases: silence and quarantine are no answers, but end the wait."""
    assert majority_answered(ballot(votes)) is settled


@pytest.mark.parametrize(("votes", "settled"), [("GG.", False), ("GSF", True)])
def test_all_answered_waits_for_all_nodes(votes: str, *, settled: bool) -> None:
    """For inspect: a majority is not enough."""
    assert all_answered(ballot(votes)) is settled


# -- the request ------------------------------------------------------------------


def test_request_is_packed_once_for_all_nodes() -> None:
    """By its SHA, with the number of keys; all nodes get the same bytes."""
    asked = request()

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


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("\ud800", "has no UTF-8"),
        (True, "neither text, bytes nor a number"),
        (10**5000, "a number of too many digits"),
        ("x" * 4_000_000, "too long for a node: at most 4,000,000"),
    ],
    ids=["text", "bool", "digits", "size"],
)
@pytest.mark.parametrize("place", ["keys", "args"])
def test_request_that_no_node_can_get_is_not_built(
    word: Any, fault: str, place: str
) -> None:
    """So it is never queued, where all other requests would wait behind it."""
    words: dict[str, Any] = {"keys": ["key"], "args": ["token"], place: [word]}

    with pytest.raises(ConfigurationError, match=fault):
        ScriptRequest(INSPECT, **words, labels=LABELS, done_when=all_answered)


def test_request_can_bring_its_source() -> None:
    """The same call, with the Lua in place of the SHA."""
    asked = request()

    known, unknown = words(asked.packed()), words(asked.packed_source())

    assert unknown[:2] == [b"EVAL", INSPECT.source.encode()]
    assert unknown[2:] == known[2:]
    assert asked.packed_source() is asked.packed_source()


def test_replies_are_entered_in_any_order() -> None:
    """Reply and vote have the index of their node."""
    asked = request()

    asked.answer(2, [1, 9])
    asked.fail(0, "is gone")

    assert asked.replies == [None, None, [1, 9]]
    assert asked.ballot.numbers(VoteKind.GRANTED) == [9]
    assert asked.ballot.reasons() == "a is gone, b had not answered"
    assert not asked.is_done()
    asked.answer(1, [3])
    assert asked.is_done()


def test_node_cannot_answer_twice() -> None:
    """A second answer would belong to another request."""
    asked = request()
    asked.answer(0, [1])

    with pytest.raises(ValueError, match="a has already voted"):
        asked.answer(0, [1])


def test_reply_after_a_failure_is_ignored() -> None:
    """The caller was told that the node is silent; the vote stays what it was."""
    asked = request()
    asked.fail(0, "was not asked any more")

    asked.answer(0, [1, 9])
    asked.fail(0, "is gone")

    assert asked.ballot.reasons().startswith("a was not asked any more, ")
    assert (asked.ballot.pending, asked.ballot.granted) == (2, 0)


def test_request_that_is_sent_again_has_no_votes() -> None:
    """The copy has the same bytes, a new ballot, and is never obsolete."""
    asked = request(resend_until=5.0, resend_since=3.0, is_obsolete=lambda: True)
    asked.answer(0, [1])

    again = asked.again()

    assert again.ballot.pending == 3
    assert again.replies == [None] * 3
    assert again.packed() == asked.packed()
    assert again.call == asked.call
    assert (again.resend_until, again.resend_since) == (5.0, 3.0)
    assert again.is_obsolete is None
