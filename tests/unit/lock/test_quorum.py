"""Counting votes, compared with an oracle that tries all futures."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.wire.quorum import Ballot, Verdict, Vote, VoteKind, quorum_of
from tests.unit.lock.support import ballot_of

GRANTED = Vote(VoteKind.GRANTED, 7)
NO_VOTES = tuple(
    Vote(kind)
    for kind in (
        VoteKind.FREE,
        VoteKind.QUARANTINED,
        VoteKind.UNSYNCED,
        VoteKind.REFUSED,
        VoteKind.SILENT,
    )
)
SILENT = Vote(VoteKind.SILENT)


def taken(token: str) -> Vote:
    """Return the vote of a node that names this holder, with its info."""
    return Vote(VoteKind.TAKEN, 1000, f"{token}\n7\ntask")


A, B, C = taken("a"), taken("b"), taken("c")
OPTIONS = (GRANTED, A, B, C, SILENT)


# -- The oracle: the table of the module's docstring, and every possible future ----


def ending(votes: tuple[Vote, ...]) -> Verdict:
    """Return how an attempt ends when these are all the votes."""
    quorum = min(q for q in range(len(votes) + 1) if 2 * q > len(votes))
    words = [vote.token if vote.kind is VoteKind.TAKEN else vote.kind for vote in votes]
    tokens = {word for word in words if isinstance(word, str)}
    if words.count(VoteKind.GRANTED) >= quorum:
        return Verdict.WON
    if any(words.count(token) >= quorum for token in tokens):
        return Verdict.HELD
    if sum(isinstance(w, str) or w is VoteKind.GRANTED for w in words) < quorum:
        return Verdict.UNREACHABLE
    return Verdict.CONTENDED


@cache
def _futures(outstanding: int) -> tuple[tuple[Vote, ...], ...]:
    # The order of votes changes nothing, which has a test of its own.
    return tuple(itertools.combinations_with_replacement(OPTIONS, outstanding))


def certain(votes: tuple[Vote | None, ...]) -> Verdict:
    """Return the verdict if all futures have the same one, else OPEN."""
    known = tuple(vote for vote in votes if vote is not None)
    futures = _futures(len(votes) - len(known))
    verdicts = {ending(known + future) for future in futures}
    return verdicts.pop() if len(verdicts) == 1 else Verdict.OPEN


# -- Exhaustively ----------------------------------------------------------------


@pytest.mark.parametrize("nodes", range(1, 10))
def test_verdict_is_given_exactly_when_it_is_certain(nodes: int) -> None:
    """A verdict comes as soon as no outstanding vote can change it, and not before."""
    options = (None, *OPTIONS)
    every = itertools.product(options, repeat=nodes)
    unordered = itertools.combinations_with_replacement(options, nodes)
    for votes in every if nodes < 6 else unordered:
        ballot = ballot_of(votes)
        assert ballot.verdict() is certain(votes), ballot


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_silence_counts_as_no_vote_at_the_end(nodes: int) -> None:
    """At the end, outstanding votes count as silent."""
    for votes in itertools.product((None, GRANTED, A, B, SILENT), repeat=nodes):
        ballot = ballot_of(votes)
        silent = tuple(vote or SILENT for vote in votes)
        assert ballot.final_verdict() is ending(silent), ballot


@given(
    st.lists(st.sampled_from([*OPTIONS, *NO_VOTES]), min_size=1, max_size=9), st.data()
)
def test_order_of_votes_does_not_matter(votes: list[Vote], data: st.DataObject) -> None:
    """Neither the order of nodes nor the order of votes changes the verdict."""
    shuffled = data.draw(st.permutations(votes))

    one, other = ballot_of(tuple(votes)), ballot_of(tuple(shuffled))

    assert one.verdict() is other.verdict()
    assert (one.granted, one.taken, one.answered) == (
        other.granted,
        other.taken,
        other.answered,
    )


@pytest.mark.parametrize("vote", NO_VOTES, ids=lambda vote: vote.kind.value)
def test_node_without_a_vote_counts_for_no_side(vote: Vote) -> None:
    """A node that neither granted nor named a holder helps neither verdict."""
    assert ballot_of((GRANTED, A, vote)).verdict() is Verdict.CONTENDED
    assert ballot_of((GRANTED, vote, vote)).verdict() is Verdict.UNREACHABLE
    assert ballot_of((vote, vote, None)).verdict() is Verdict.UNREACHABLE


# -- By example ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)]
)
def test_quorum_is_more_than_half(nodes: int, quorum: int) -> None:
    """Any two quorums share a node, so that two holders cannot both have one."""
    assert quorum_of(nodes) == quorum
    assert 2 * quorum_of(nodes) > nodes


def test_same_holder_is_recognised_by_its_token_alone() -> None:
    """Nodes may differ in the info that they keep about one holder."""
    one = Vote(VoteKind.TAKEN, 900, "token\n7\ntask")
    other = Vote(VoteKind.TAKEN, 800, "token\n9\n")
    ballot = ballot_of((one, other, GRANTED))

    assert ballot.verdict() is Verdict.HELD
    assert ballot.top_taker == ("token", 2)
    assert ballot.votes_for("token") == 2
    assert ballot.votes_for("no-holder") == 0
    assert ballot.holder_value() == "token\n7\ntask"
    no_taker = ballot_of((GRANTED, SILENT, None))
    assert (no_taker.top_taker, no_taker.holder_value()) == (("", 0), "")


def test_node_votes_once() -> None:
    """A second vote of a node is an error of the caller, and changes nothing."""
    ballot = ballot_of((GRANTED, None, None))

    with pytest.raises(ValueError, match="node-0 has already voted"):
        ballot.cast(0, A)
    assert (ballot.granted, ballot.taken, ballot.pending) == (1, 0, 2)


def test_votes_are_found_by_kind() -> None:
    """Indexes and numbers of a kind are in node order."""
    ballot = ballot_of((Vote(VoteKind.GRANTED, 7), None, A, Vote(VoteKind.GRANTED, 9)))

    assert ballot.indexes(VoteKind.GRANTED) == [0, 3]
    assert ballot.numbers(VoteKind.GRANTED) == [7, 9]
    assert ballot.indexes(VoteKind.SILENT) == []


def quarantined(milliseconds: int) -> Vote:
    """Return the vote of a node that is in quarantine for so long."""
    return Vote(VoteKind.QUARANTINED, milliseconds)


@pytest.mark.parametrize(
    ("votes", "wait"),
    [
        ((GRANTED, quarantined(900), quarantined(500)), 500),
        ((SILENT, quarantined(900), quarantined(500)), 900),
        ((SILENT, SILENT, quarantined(500)), None),
        ((GRANTED, A, quarantined(500)), None),
        ((quarantined(1), quarantined(3), quarantined(2)), 2),
        ((SILENT, SILENT, GRANTED), None),
    ],
)
def test_quarantine_ends_when_a_majority_may_vote(
    votes: tuple[Vote, ...], wait: int | None
) -> None:
    """The wait is for the missing nodes, if enough of them will vote again."""
    assert ballot_of(votes).quarantine_ms() == wait


def test_reasons_name_each_node_that_gave_no_vote() -> None:
    """Operators read which nodes did not vote, and why."""
    ballot = ballot_of(
        (
            GRANTED,
            None,
            quarantined(1500),
            Vote(VoteKind.UNSYNCED),
            Vote(VoteKind.SILENT, reason="refused the connection"),
            Vote(VoteKind.REFUSED, reason="is read-only"),
        )
    )

    assert ballot.reasons() == (
        "node-1 had not answered, node-2 is in quarantine for 1.5 s, node-3 is new "
        "or may have forgotten locks, node-4 refused the connection, node-5 is "
        "read-only"
    )
    assert "node-0=granted node-1=?" in repr(ballot)


def test_reasons_give_the_same_advice_once() -> None:
    """It follows on the last of these nodes, and not in the middle of their names."""
    late, down = "is late; look at it; wait", "is down; start it"
    reasons = (late, late, down, "refused", down)
    votes = (Vote(VoteKind.SILENT, reason=reason) for reason in reasons)

    assert ballot_of(tuple(votes)).reasons() == (
        "node-0 is late, node-1 is late; look at it; wait, node-2 is down; start it, "
        "node-3 refused, node-4 is down; start it"
    )


def test_reasons_tell_a_newcomer_from_a_node_that_may_have_forgotten() -> None:
    """Both wait for the other nodes; the operator looks for the cause elsewhere."""
    ballot = ballot_of(
        (Vote(VoteKind.UNSYNCED, value="1f"), Vote(VoteKind.UNSYNCED), None)
    )

    assert ballot.problems() == [
        "node-0 is not confirmed by other nodes yet",
        "node-1 is new or may have forgotten locks",
        "node-2 had not answered",
    ]


@pytest.mark.parametrize(
    ("nodes", "why"),
    [(1, "does not vote yet"), (2, "is not confirmed by other nodes yet")],
)
def test_only_node_waits_for_no_other(nodes: int, why: str) -> None:
    """A node alone in its deployment votes after its quarantine, by itself."""
    ballot = ballot_of((Vote(VoteKind.UNSYNCED, value="1f"),) * nodes)

    assert ballot.problems()[0] == f"node-0 {why}"


def test_node_that_is_not_needed_is_not_called_silent() -> None:
    """The request was done without it, so its missing vote is no problem of it."""
    ballot = Ballot(["node-0", "node-1", "node-2"], lambda ballot: ballot.granted > 1)
    ballot.cast(0, GRANTED)
    early = ballot.problems()
    ballot.cast(1, GRANTED)

    assert early == ["node-1 had not answered", "node-2 had not answered"]
    assert ballot.problems() == ["node-2 was not waited for"]


def taken_keys(*tokens: str) -> Vote:
    """Return the vote of a node that names a holder of each of several keys."""
    votes = [
        taken(token)._replace(place=place)
        for place, token in enumerate(tokens)
        if token
    ]
    return votes[0]._replace(more=tuple(votes[1:]))


def test_each_of_several_keys_has_a_top_taker_of_its_own() -> None:
    """The holder that most nodes name; nodes that name no holder of a key are left out.

    The first key is held on a majority by ``a``, though ``z`` would be the last of an
    order of tokens.
    """
    ballot = ballot_of(
        (
            taken_keys("a", "c"),
            taken_keys("z", "d"),
            taken_keys("a", "d"),
            taken_keys("", "d"),
            GRANTED,
        )
    )

    assert [vote.token for vote in ballot.top_votes(0)] == ["a", "a"]
    assert [vote.token for vote in ballot.top_votes(1)] == ["d", "d", "d"]
    assert {vote.place for vote in ballot.top_votes(1)} == {1}
    assert ballot.top_votes(2) == []
    assert ballot_of((GRANTED, None, SILENT)).top_votes(0) == []
