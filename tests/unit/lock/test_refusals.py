"""Why a lock is not granted: held, contended, or too few nodes."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

from celery_redlock.basics.command import COMMAND
from celery_redlock.errors import (
    LockContended,
    LockHeld,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.locks.failure import delay_after, failure_of
from celery_redlock.locks.lease import Holder, new_base
from celery_redlock.members.configuration import Configuration
from celery_redlock.members.view import View
from celery_redlock.testing import FakeNodes
from celery_redlock.wire.quorum import INTERRUPTED, Ballot, Vote, VoteKind
from tests.unit.lock.support import (
    FREE,
    TTL,
    Site,
    args_of,
    asked,
    ballot_of,
    forget,
    hold,
    holders,
    put,
    restart,
)

# -- held ------------------------------------------------------------------------------


def test_lock_held_names_the_holder(site: Site) -> None:
    """The error names the holder, its votes and its end, after one round trip."""
    theirs = Holder("", task="report", task_id="42", host="h", pid=3)
    lease = site.rival.acquire("k", holder=theirs)

    with pytest.raises(LockHeld) as caught:
        site.redlock.acquire("k")

    error = caught.value
    assert (error.key, error.retry_after) == ("k", TTL)
    assert error.holder is not None
    assert (error.holder.token, error.holder.task_id) == (lease.token, "42")
    assert error.ballot is not None
    assert error.ballot.taken == 5
    assert str(error) == (
        "The lock 'k' is held by report[42] on h (pid 3), as 5 of 5 nodes say, for "
        "10.0 s more unless renewed."
    )
    assert asked(site.nodes) == ["acquire"]
    assert site.clock.slept == []


@pytest.mark.parametrize("latency", [0.01, 0.04])
def test_lock_held_by_a_majority_releases_what_was_granted(
    site: Site, latency: float
) -> None:
    """The verdict is certain; nodes that granted, or may still grant, get a release."""
    hold(site.nodes, 0, 1, 2)
    site.nodes.latency(0.01)
    site.nodes.latency(latency, 3, 4)
    before = site.clock.monotonic()

    with pytest.raises(LockHeld):
        site.redlock.acquire("k")

    assert site.clock.monotonic() == pytest.approx(before + 0.01)
    assert asked(site.nodes) == ["acquire", "release"]
    assert holders(site.nodes) == ["other.1"] * 3 + ["", ""]


@pytest.mark.parametrize(
    ("left", "retry_after"),
    [([5, 5, 5], 5.0), ([1, 4, 9], 1.0), ([1, 2, 3, 4, 5], 3.0), ([1, 2, 3, 4], 2.0)],
)
def test_retry_after_is_when_no_majority_names_the_holder(
    site: Site, left: list[int], retry_after: float
) -> None:
    """A lock expires on one node after the other, and needs a quorum."""
    for index, seconds in enumerate(left):
        put(site.nodes, index, "other.1", ttl_ms=seconds * 1000)

    with pytest.raises(LockHeld) as caught:
        site.redlock.acquire("k")

    assert caught.value.retry_after == retry_after


def test_lock_that_never_ends_is_said_to_be_one(site: Site) -> None:
    """Nodes give -1 for a key without ttl, which another program made."""
    for node in site.nodes.nodes:
        node.memory.redis.set(b"redlock:lock:k", b"theirs")

    with pytest.raises(LockHeld) as caught:
        site.redlock.acquire("k")

    assert caught.value.retry_after is None
    assert str(caught.value).endswith(
        f", as 5 of 5 nodes say, for ever: it has no ttl. Only `{COMMAND} release` "
        "ends it."
    )
    assert site.redlock.inspect("k").ttl_left == math.inf


def test_refusal_does_not_keep_the_caller(site: Site) -> None:
    """Its error leads to all frames. In a cycle, only the collector would end them."""

    class Owned:
        """Something that a caller has."""

    def is_refused() -> weakref.ref[Owned]:
        owned = Owned()
        with pytest.raises(LockHeld), site.lock():
            pass
        return weakref.ref(owned)

    hold(site.nodes, 0, 1, 2)
    gc.disable()
    try:
        owned = is_refused()
        assert owned() is None
    finally:
        gc.enable()


# -- contended -------------------------------------------------------------------------


def split(nodes: FakeNodes) -> None:
    """Let two other clients hold two nodes each."""
    for index, token in enumerate(["one.1", "one.1", "two.1", "two.1"]):
        put(nodes, index, token, ttl_ms=1_000_000)


def test_split_votes_are_tried_five_times(site: Site) -> None:
    """Split votes are never "held"; each try releases the votes that it got.

    It has a token of its own, so that no delayed release deletes the vote of the next.
    """
    split(site.nodes)
    base = new_base()

    with pytest.raises(LockContended) as caught:
        site.redlock.acquire("k", base=base)

    assert asked(site.nodes) == ["acquire", "release"] * 5
    assert len(site.clock.slept) == 4
    assert holders(site.nodes) == ["one.1"] * 2 + ["two.1"] * 2 + [""]
    assert str(caught.value) == (
        "The votes for 'k' were split: 1 of 5 nodes granted it (need 3), 4 named "
        "other holders. Nothing is held; try again."
    )
    tokens = [args[0] for args in args_of(site.nodes, "acquire")]
    assert len(set(tokens)) == 5
    assert {token.partition(".")[0] for token in tokens} == {base}
    assert [args[0] for args in args_of(site.nodes, "release")] == tokens


def test_pauses_between_tries_are_random_and_short(site: Site) -> None:
    """Each pause is drawn from a range that doubles, up to ttl / 10."""
    split(site.nodes)
    site.nodes.latency(0.01)

    pauses: list[list[float]] = [[] for _ in range(4)]
    for _ in range(50):
        site.clock.slept.clear()
        with pytest.raises(LockContended):
            site.redlock.acquire("k")
        for index, pause in enumerate(site.clock.slept):
            pauses[index].append(pause)

    for index, ceiling in enumerate([0.04, 0.08, 0.16, 0.25]):
        assert ceiling / 4 <= min(pauses[index]) < ceiling / 2
        assert ceiling / 2 < max(pauses[index]) <= ceiling
        assert len(set(pauses[index])) > 25


@pytest.mark.parametrize(
    ("released_at", "wait", "tries"),
    [(0.004, 0.0, range(2, 6)), (2.0, 3.0, range(6, 500))],
)
def test_split_votes_are_won_once_the_others_release(
    site: Site, released_at: float, wait: float, tries: range
) -> None:
    """A later try wins the lock. With ``wait`` there are as many tries as fit."""
    split(site.nodes)
    site.clock.at(released_at, lambda: forget(site.nodes, 0, 1, 2, 3))

    assert site.redlock.acquire("k", wait=wait).votes == 5
    assert asked(site.nodes).count("acquire") in tries


# -- too few nodes ---------------------------------------------------------------------


def test_quorum_unreachable_names_each_node_and_its_reason(site: Site) -> None:
    """Numbers, reasons, what holds now, and the remedy. The few grants are released."""
    site.nodes.nodes[0].kill()
    site.nodes.nodes[1].kill()
    site.nodes.freeze(2)

    with pytest.raises(QuorumUnreachable) as caught:
        site.redlock.acquire("k")

    assert str(caught.value) == (
        "Only 2 of 5 nodes gave a vote on 'k' within 0.05 s (need 3): node-1:6379/0 "
        "refused the connection, node-2:6379/0 refused the connection, node-3:6379/0 "
        "had not answered. Nothing is held. Run `celery -A proj redlock doctor`."
    )
    assert caught.value.retry_after is None
    assert caught.value.key == "k"


def test_remedy_for_a_request_that_a_handler_cut_off_is_no_doctor() -> None:
    """No node is the reason, so there is nothing to be found on them."""
    silent = Vote(VoteKind.SILENT, reason=INTERRUPTED, was_asked=True)
    ballot = ballot_of([silent] * 3)

    text = str(failure_of("k", ballot, config="", ttl=30.0))

    assert f"node-0 {INTERRUPTED}" in text
    assert text.endswith(
        "Try again, and take no locks in signal handlers or finalisers."
    )


@pytest.mark.parametrize("lost", [2, 3])
def test_lost_answers_of_a_majority_are_no_proof_that_nothing_is_held(
    site: Site, lost: int
) -> None:
    """A node may grant, and its connection break before the answer arrives."""

    def kill(indexes: range) -> None:
        for index in indexes:
            site.nodes.nodes[index].kill()

    kill(range(lost, 5))
    site.nodes.freeze(*range(lost))
    site.clock.at(0.01, lambda: kill(range(lost)))

    with pytest.raises(QuorumUnreachable) as caught:
        site.redlock.acquire("k", ttl=10)

    unsure = "until it is reached again, at most for 10 s. Run" in str(caught.value)
    assert unsure == (lost == 3)
    assert ("Nothing is held. " in str(caught.value)) == (lost == 2)
    assert holders(site.nodes)[3:] == ["", ""]


def test_server_error_is_a_refusal_with_its_words(site: Site) -> None:
    """A foreign key of that name is no vote, and no exception of redis-py."""
    for node in site.nodes.nodes[:3]:
        node.memory.redis.hset(b"redlock:lock:k", {b"field": b"theirs"})

    with pytest.raises(QuorumUnreachable, match="node-1:6379/0 answered WRONGTYPE"):
        site.redlock.acquire("k")


def test_refusal_is_not_waited_for(site: Site) -> None:
    """Three errors out of five decide at once."""
    for node in site.nodes.nodes[:3]:
        node.kill()

    with pytest.raises(QuorumUnreachable):
        site.redlock.acquire("k")

    assert site.clock.monotonic() == 1000.0


def test_silence_is_waited_for_one_node_timeout(site: Site) -> None:
    """A node that hung runs requests in order: the late grant, then its release."""
    site.nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        site.redlock.acquire("k")

    assert site.clock.monotonic() == pytest.approx(1000.05)
    site.nodes.thaw()
    assert holders(site.nodes) == FREE


def test_node_that_was_late_is_not_waited_for_again(site: Site) -> None:
    """A minority that hangs costs one time-out, not one per call."""
    site.nodes.freeze(0)
    site.redlock.check()
    before = site.clock.monotonic()

    site.redlock.check()
    site.redlock.acquire("k")

    assert site.clock.monotonic() == before


def test_quarantine_is_named_with_its_wait(site: Site) -> None:
    """The error says when the nodes vote. They had locks: so it recommends no init."""
    restart(site.nodes, 0, 1, 2)

    with pytest.raises(QuorumUnreachable) as caught:
        site.redlock.acquire("k")

    assert caught.value.retry_after == pytest.approx(62.2)
    assert "node-1:6379/0 is in quarantine for 62.2 s" in str(caught.value)
    assert "They vote again by themselves in 62.2 s" in str(caught.value)
    assert "redlock init" not in str(caught.value)


# -- errors and pauses, from votes -----------------------------------------------------


OURS = Configuration(("n0", "n1", "n2"), 30.0, is_guarded=True)
THEIRS = View.first_of_epoch(
    Configuration(("n0", "n1", "n2"), 60.0, is_guarded=True),
    {"n0": "a", "n1": "b", "n2": "c"},
    before=None,
)
VOTES = {
    "G": Vote(VoteKind.GRANTED, 1),
    "A": Vote(VoteKind.TAKEN, 1000, "a.1\n1\ntask-a"),
    "B": Vote(VoteKind.TAKEN, 1000, "b.1\n1\ntask-b"),
    "Q": Vote(VoteKind.QUARANTINED, 3000),
    "S": Vote(VoteKind.SILENT, reason="is gone"),
    "M": Vote(
        VoteKind.REFUSED, value=str(THEIRS), reason="has another view of the deployment"
    ),
}


def failure(votes: str) -> LockUnavailable:
    """Return the error for these votes; a dot is an outstanding vote."""
    labels = [f"n{index}" for index in range(len(votes))]
    ballot = ballot_of([VOTES.get(letter) for letter in votes], labels)
    ballot.patience = 0.05
    return failure_of("k", ballot, config=str(OURS))


@pytest.mark.parametrize(
    ("votes", "kind"),
    [
        ("AAB", LockHeld),
        ("AAS", LockHeld),
        ("AAAGG", LockHeld),
        ("ABG", LockContended),
        ("AB.", LockContended),
        ("AABBG", LockContended),
        ("AGS", LockContended),
        ("GG.", LockContended),
        ("ASS", QuorumUnreachable),
        ("GQQ", QuorumUnreachable),
        ("...", QuorumUnreachable),
        ("MMM", QuorumUnreachable),
    ],
)
def test_each_outcome_has_its_error(votes: str, kind: type[LockUnavailable]) -> None:
    """Held, contended and unreachable have an error each."""
    error = failure(votes)

    assert type(error) is kind
    assert error.key == "k"
    assert error.ballot is not None


def test_nodes_that_were_not_needed_were_given_no_time() -> None:
    """Two nodes have refused at once, so the third one is not waited for."""
    ballot = Ballot(["n0", "n1", "n2"], lambda ballot: ballot.pending < 2)
    ballot.patience = 0.05
    ballot.cast(0, VOTES["M"])
    ballot.cast(1, VOTES["M"])

    error = failure_of("k", ballot, config=str(OURS))

    assert "gave a vote on 'k' (need 2): n0 has" in str(error)
    assert "n2 was not waited for" in str(error)


MESSAGES = {
    "AAB": """
        The lock 'k' is held by task-a on an unknown host (pid 0), as 2 of 3 nodes
        say, for 1.0 s more unless renewed.
        """,
    "ABS": """
        The votes for 'k' were split: 0 of 3 nodes granted it (need 2), 2 named
        other holders; n2 is gone. Nothing is held; try again.
        """,
    "QQS": """
        Only 0 of 3 nodes gave a vote on 'k' (need 2): n0 is in quarantine for 3.0 s,
        n1 is in quarantine for 3.0 s, n2 is gone. Nothing is held. They vote again by
        themselves in 3.0 s at the earliest. In a brand-new deployment,
        `celery -A proj redlock init` ends the wait.
        """,
    "MMG": """
        Only 1 of 3 nodes gave a vote on 'k' (need 2): n0 has another view of the
        deployment, n1 has another view of the deployment. Nothing is held.
        The nodes are at epoch 1 with max_ttl 60 s; this client has max_ttl 30 s. Set
        redlock_max_ttl = 60, or move the nodes to yours with
        `celery -A proj redlock reconfigure`.
        """,
    "SS.": """
        Only 0 of 3 nodes gave a vote on 'k' within 0.05 s (need 2): n0 is gone, n1
        is gone, n2 had not answered. Nothing is held. Run `celery -A proj redlock
        doctor`.
        """,
}


@pytest.mark.parametrize("votes", MESSAGES)
def test_message_is_fact_state_and_remedy(votes: str) -> None:
    """A message has the numbers, and the reason of each node."""
    assert str(failure(votes)) == " ".join(MESSAGES[votes].split())


@pytest.mark.parametrize(
    ("votes", "tries", "ttl", "took", "longest"),
    [
        ("ABG", 1, 30.0, 0.0, 0.004),  # at least 2 ms, doubled
        ("ABG", 1, 30.0, 0.01, 0.04),  # two round trips, doubled
        ("ABG", 3, 30.0, 0.01, 0.16),
        ("ABG", 9, 30.0, 0.01, 0.25),
        ("ABG", 9, 1.0, 0.01, 0.1),  # a tenth of the ttl
        ("AAG", 9, 1.0, 0.01, 0.1),
        ("SSS", 9, 1.0, 0.01, 0.0625),  # no holder: soon
        ("GG.", 9, 30.0, 0.01, 0.0625),
    ],
)
def test_pause_is_random_below_a_ceiling_that_doubles(
    votes: str, tries: int, ttl: float, took: float, longest: float
) -> None:
    """Contenders that lost together must not try together."""
    error = failure(votes)

    pauses = [delay_after(error, tries, ttl=ttl, took=took) for _ in range(300)]

    assert longest / 4 <= min(pauses) < longest / 3
    assert longest * 0.9 < max(pauses) <= longest


def test_pause_after_very_many_tries_is_still_a_number() -> None:
    """The pause does not overflow after a day of tries."""
    assert delay_after(failure("ABG"), 2000, ttl=30.0, took=0.01) <= 0.25
