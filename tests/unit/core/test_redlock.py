"""Acquire, release and inspect on a majority."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import Holder, LeaseState, new_base
from celery_redlock.core.redlock import Redlock
from celery_redlock.core.timing import drift_of
from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockHeld,
    LockLost,
    LockUnavailable,
    QuorumUnreachable,
)
from celery_redlock.testing import FakeNodes
from tests.unit.core.support import args_of, asked, forget, holders, put, ttls

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock

TTL = 10.0
NOBODY = [""] * 5


def hold(nodes: FakeNodes, *indexes: int, by: str = "other.1") -> None:
    """Let these nodes name somebody else."""
    for index in indexes:
        put(nodes, index, by)


# -- acquire: won ----------------------------------------------------------------


def test_acquire_returns_a_lease_that_all_nodes_granted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """One round trip; every node names its token for the ttl."""
    lease = redlock.acquire("k")

    assert lease.is_valid()
    assert (lease.key, lease.ttl, lease.votes) == ("k", TTL, 5)
    assert lease.state is LeaseState.HELD
    assert holders(nodes) == [lease.token] * 5
    assert ttls(nodes) == [10_000] * 5
    assert asked(nodes) == ["acquire"]


def test_validity_is_the_ttl_less_the_drift(redlock: Redlock, clock: FakeClock) -> None:
    """1 % of the ttl and 2 ms are left to clocks that run at different rates."""
    lease = redlock.acquire("k")

    assert lease.remaining() == pytest.approx(TTL - 0.1 - 0.002)
    clock.advance(TTL - 0.1 - 0.002)
    assert not lease.is_valid()


def test_validity_counts_from_before_the_first_send(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """What the round trip took is not added to it."""
    nodes.latency(0.03)
    before = clock.monotonic()

    lease = redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(before + 0.03)
    assert lease.started_at == before
    assert lease.until == pytest.approx(before + TTL - drift_of(TTL))


def test_validity_of_a_later_try_counts_from_that_try(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Waiting for a lock costs none of its validity."""
    hold(nodes, 0, 1, 2)
    clock.at(3.0, lambda: forget(nodes, 0, 1, 2))

    lease = redlock.acquire("k", wait=5.0)

    assert clock.monotonic() - lease.started_at == 0
    assert lease.remaining() == pytest.approx(TTL - drift_of(TTL))


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(None, 10.0), (2.5, 2.5), (timedelta(seconds=40), 40.0)]
)
def test_acquire_asks_for_the_ttl(
    nodes: FakeNodes, redlock: Redlock, ttl: Any, seconds: float
) -> None:
    """The service's by default; seconds or a timedelta."""
    lease = redlock.acquire("k", ttl)

    assert lease.ttl == seconds
    assert ttls(nodes) == [seconds * 1000] * 5


def test_acquire_stores_who_holds_it(nodes: FakeNodes, redlock: Redlock) -> None:
    """The token begins with the given base and the facts are told to others."""
    base = new_base()
    facts = Holder("", task="t", task_id="id", host="h", pid=3, started=4.5)

    lease = redlock.acquire("k", base=base, facts=facts)

    assert lease.token.startswith(f"{base}.")
    holder = redlock.inspect("k").holder
    assert holder == Holder(lease.token, lease.fence, "t", "id", "h", 3, 4.5)


def test_acquire_tells_of_this_process_by_default(
    redlock: Redlock, clock: FakeClock
) -> None:
    """Without facts: this host and process, and the wall clock."""
    redlock.acquire("k")

    holder = redlock.inspect("k").holder
    here = Holder.here(started=clock.wall_us() / 1e6)
    assert holder is not None
    assert (holder.host, holder.pid, holder.started) == (
        here.host,
        here.pid,
        here.started,
    )


@pytest.mark.parametrize("count", range(1, 8))
def test_minority_may_be_down(count: int) -> None:
    """With N nodes, N − (N // 2 + 1) may be gone and one more may not."""
    nodes = FakeNodes(count)
    redlock = nodes.redlock()
    spare = count - redlock.quorum
    for node in nodes.nodes[:spare]:
        node.kill()

    lease = redlock.acquire("a")

    assert lease.votes == redlock.quorum == count // 2 + 1
    nodes.nodes[spare].kill()
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("b")


# -- acquire: held ---------------------------------------------------------------


def test_lock_held_names_the_holder(redlock: Redlock, rival: Redlock) -> None:
    """Who has it, how sure that is, and when it ends unless renewed."""
    facts = Holder("", task="report", task_id="42", host="h", pid=3)
    lease = rival.acquire("k", facts=facts)

    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")

    error = caught.value
    assert (error.key, error.retry_after) == ("k", TTL)
    assert error.holder is not None
    assert (error.holder.token, error.holder.task_id) == (lease.token, "42")
    assert error.ballot is not None
    assert error.ballot.taken == 5
    assert str(error) == (
        "The lock 'k' is held by report[42] on h (pid 3), as 5 of 5 nodes say, for "
        "10.0 s more unless renewed. Nothing is locked by you."
    )


def test_lock_held_costs_one_round_trip(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """No second question, no pause: a duplicate is told at once."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k")

    assert asked(nodes) == ["acquire"]
    assert clock.slept == []


def test_lock_held_by_a_majority_releases_what_was_granted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Nothing of the loser stays, and nothing of the holder goes."""
    hold(nodes, 0, 1, 2)

    with pytest.raises(LockHeld):
        redlock.acquire("k")

    assert asked(nodes) == ["acquire", "release"]
    assert holders(nodes) == ["other.1"] * 3 + [""] * 2


def test_lock_held_does_not_wait_for_the_slow(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The verdict is certain; those who may still grant are told to let go."""
    hold(nodes, 0, 1, 2)
    nodes.latency(0.01)
    nodes.latency(0.04, 3, 4)
    before = clock.monotonic()

    with pytest.raises(LockHeld):
        redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(before + 0.01)
    assert asked(nodes) == ["acquire", "release"]
    assert holders(nodes)[3:] == ["", ""]


@pytest.mark.parametrize(
    ("left", "retry_after"),
    [([5, 5, 5], 5.0), ([1, 4, 9], 1.0), ([1, 2, 3, 4, 5], 3.0), ([1, 2, 3, 4], 2.0)],
)
def test_retry_after_is_when_no_majority_names_the_holder(
    nodes: FakeNodes, redlock: Redlock, left: list[int], retry_after: float
) -> None:
    """Nodes end a lock one after the other; fewer than a quorum are no holder."""
    for index, seconds in enumerate(left):
        put(nodes, index, "other.1", ttl_ms=seconds * 1000)

    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")

    assert caught.value.retry_after == retry_after


def test_retry_after_of_a_lock_that_never_ends_is_not_negative(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A key without ttl, of somebody else's making, is -1 to the nodes."""
    for node in nodes.nodes:
        node.memory.redis.set(b"redlock:lock:k", b"theirs")

    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")

    assert caught.value.retry_after == 0


# -- acquire: contended ----------------------------------------------------------


def split(nodes: FakeNodes) -> None:
    """Let two others have two nodes each."""
    for index, token in enumerate(["one.1", "one.1", "two.1", "two.1"]):
        put(nodes, index, token, ttl_ms=1_000_000)


def test_split_votes_are_tried_five_times(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Nobody has it, so it is never "held"; each try lets go of what it got."""
    split(nodes)

    with pytest.raises(LockContended) as caught:
        redlock.acquire("k")

    assert asked(nodes) == ["acquire", "release"] * 5
    assert len(clock.slept) == 4
    assert holders(nodes) == ["one.1"] * 2 + ["two.1"] * 2 + [""]
    assert str(caught.value) == (
        "The votes for 'k' were split: 1 of 5 nodes granted it (need 3), 4 named "
        "others. Nothing is locked; try again."
    )


def test_each_try_has_a_token_of_its_own(nodes: FakeNodes, redlock: Redlock) -> None:
    """A delayed release of one try cannot delete the vote of the next."""
    split(nodes)
    base = new_base()

    with pytest.raises(LockContended):
        redlock.acquire("k", base=base)

    tokens = [args[0] for args in args_of(nodes, "acquire")]
    assert len(set(tokens)) == 5
    assert {token.partition(".")[0] for token in tokens} == {base}
    assert [args[0] for args in args_of(nodes, "release")] == tokens


def test_pauses_between_tries_are_random_and_short(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Contenders part: each draws from a range that doubles, up to ttl / 10."""
    split(nodes)
    nodes.latency(0.01)

    pauses: list[list[float]] = [[] for _ in range(4)]
    for _ in range(50):
        clock.slept.clear()
        with pytest.raises(LockContended):
            redlock.acquire("k")
        for index, pause in enumerate(clock.slept):
            pauses[index].append(pause)

    for index, ceiling in enumerate([0.04, 0.08, 0.16, 0.25]):
        assert ceiling / 4 <= min(pauses[index]) < ceiling / 2
        assert ceiling / 2 < max(pauses[index]) <= ceiling
        assert len(set(pauses[index])) > 25


def test_split_votes_are_won_once_the_others_let_go(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A try a moment later wins."""
    split(nodes)
    clock.at(0.004, lambda: forget(nodes, 0, 1, 2, 3))

    assert redlock.acquire("k").votes == 5


def test_split_votes_wait_as_long_as_is_asked(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """With ``wait`` there are as many tries as fit."""
    split(nodes)
    clock.at(2.0, lambda: forget(nodes, 0, 1, 2, 3))

    assert redlock.acquire("k", wait=3.0).is_valid()
    assert asked(nodes).count("acquire") > 5


# -- acquire: unreachable --------------------------------------------------------


def test_too_few_nodes_is_told_with_who_and_why(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Numbers, reasons, what holds now, and the remedy. The few granted let go."""
    nodes.nodes[0].kill()
    nodes.nodes[1].kill()
    nodes.freeze(2)

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")

    assert str(caught.value) == (
        "Only 2 of 5 nodes gave a vote on 'k' within 0.05 s (need 3): node-1:6379/0 "
        "refused the connection, node-2:6379/0 refused the connection, node-3:6379/0 "
        "had not answered. Nothing is locked. Run `celery -A proj redlock doctor`."
    )
    assert caught.value.retry_after is None
    assert caught.value.key == "k"
    assert holders(nodes)[3:] == ["", ""]


def test_refusal_is_not_waited_for(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Three errors out of five settle it at once."""
    for node in nodes.nodes[:3]:
        node.kill()

    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    assert clock.monotonic() == 1000.0


def test_silence_is_waited_for_one_node_timeout(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Not longer, whoever hangs."""
    nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    assert clock.monotonic() == pytest.approx(1000.05)


def test_late_grants_are_released(nodes: FakeNodes, redlock: Redlock) -> None:
    """A node that hung does first what was sent first: grant, then let go."""
    nodes.freeze(0, 1, 2)
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    nodes.thaw()

    assert holders(nodes) == NOBODY


def test_grants_whose_answer_was_late_are_released(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Release goes to ALL nodes, also to those that seemed to fail."""
    nodes.latency(0.2, 0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    assert holders(nodes) == NOBODY


def test_late_answers_are_entered_where_they_belong(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """The answer to a question that was given up is not that to the next one."""
    nodes.latency(0.2, 0, 1, 2)
    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")
    nodes.latency(0.0)
    clock.advance(0.2)

    inspection = redlock.inspect("k")

    assert inspection.holder is None
    assert [vote and vote.kind for vote in inspection.ballot.votes] == [
        VoteKind.FREE
    ] * 5
    assert caught.value.ballot is not None
    assert caught.value.ballot.granted == 5  # by now


def test_node_that_was_late_is_not_waited_for_again(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A minority that hangs costs one time-out, not one with each call."""
    nodes.freeze(0)
    redlock.check()
    before = clock.monotonic()

    redlock.check()
    redlock.acquire("k")

    assert clock.monotonic() == before


def test_node_that_was_down_is_told_to_release_when_it_is_back(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """What it granted before it went is let go when it returns with its memory."""
    lease = redlock.acquire("k")
    nodes.nodes[0].kill()
    assert redlock.release(lease) == 4
    assert nodes.owes

    nodes.nodes[0].restart(keep_memory=True)
    assert holders(nodes)[0] == lease.token
    nodes.drain(clock.monotonic())

    assert holders(nodes) == NOBODY


def test_node_in_quarantine_is_told_with_its_wait(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A brand-new deployment says when it votes, and how not to wait."""
    for node in nodes.nodes[:3]:
        node.restart()
    clock.at(0.0, lambda: None)

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")

    assert caught.value.retry_after == pytest.approx(62.2)
    assert "node-1:6379/0 is in quarantine for 62.2 s" in str(caught.value)
    assert "They vote again by themselves in 62.2 s" in str(caught.value)
    assert "redlock init" in str(caught.value)


def test_acquire_waits_for_nodes_to_come_back(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """``wait`` is for whatever keeps it from being granted."""
    nodes.freeze(0, 1, 2)
    clock.at(3.0, nodes.thaw)

    lease = redlock.acquire("k", wait=5.0)

    assert 3.0 <= clock.monotonic() - 1000.0 < 4.0
    assert lease.is_valid()


# -- acquire: never an invalid lease ---------------------------------------------


def test_acquire_after_a_long_pause_tries_again(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A process that was stopped between question and answer has won nothing."""
    nodes.latency(0.01)
    clock.at(0.005, lambda: clock.advance(TTL))

    lease = redlock.acquire("k")

    assert lease.is_valid()
    assert lease.started_at > 1000.0 + TTL
    assert asked(nodes) == ["acquire", "release", "acquire"]


def test_acquire_never_returns_what_has_ended(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """However often: an error, and nothing is held."""
    nodes.latency(0.01)

    def stall() -> None:
        clock.advance(TTL)
        clock.at(0.002, stall)

    clock.at(0.002, stall)

    with pytest.raises(LockContended) as caught:
        redlock.acquire("k")

    assert "granted by 5 of 5 nodes, but its fence or its validity" in str(caught.value)
    assert holders(nodes) == NOBODY


@pytest.mark.parametrize("early", [0.0, 0.001])
def test_validity_is_looked_at_after_the_last_round_trip(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock, early: float
) -> None:
    """At its very end a lease is not granted any more; a millisecond before, it is."""
    validity = TTL - drift_of(TTL)
    nodes.latency(0.01)
    clock.at(0.005, lambda: clock.advance(validity - 0.005 - early))

    lease = redlock.acquire("k")

    again = ["release", "acquire"] if early == 0.0 else []
    assert asked(nodes) == ["acquire", *again]
    assert lease.is_valid()


def test_interrupted_acquire_lets_go(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A time limit, or Ctrl-C, between question and answer leaves no lock."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    nodes.latency(0.01)
    clock.at(0.005, interrupt)

    with pytest.raises(KeyboardInterrupt):
        redlock.acquire("k")

    assert asked(nodes) == ["acquire", "release"]
    assert holders(nodes) == NOBODY


# -- acquire: waiting ------------------------------------------------------------


def test_acquire_waits_for_the_holder(
    redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """It is had soon after it was released."""
    lease = rival.acquire("k")
    clock.at(3.0, lambda: rival.release(lease))

    mine = redlock.acquire("k", wait=5.0)

    assert 3.0 <= clock.monotonic() - 1000.0 <= 3.0 + 0.25
    assert mine.token != lease.token


def test_acquire_gives_up_when_its_wait_is_over(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Not later than it was told, and not much sooner."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k", wait=2.0)

    assert 2.0 - 0.25 <= clock.monotonic() - 1000.0 <= 2.0
    assert all(0 < pause <= 0.25 for pause in clock.slept)
    assert asked(nodes).count("acquire") == len(clock.slept) + 1


def test_acquire_polls_short_locks_more_often(
    redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """The longest pause is a tenth of the ttl where somebody has the lock."""
    rival.acquire("k")

    with pytest.raises(LockHeld):
        redlock.acquire("k", ttl=1.0, wait=3.0)

    assert 0.05 < max(clock.slept) <= 0.1


# -- acquire: bad input ----------------------------------------------------------


@pytest.mark.parametrize("key", ["", "two\nlines"])
def test_key_must_be_one_line(nodes: FakeNodes, redlock: Redlock, key: str) -> None:
    """Nothing is sent for a key that would break the value or the names of keys."""
    with pytest.raises(ConfigurationError, match="must be one line of text"):
        redlock.acquire(key)

    assert asked(nodes) == []


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, 60.1, 0.15, True, "10"])
def test_ttl_must_fit(nodes: FakeNodes, redlock: Redlock, ttl: Any) -> None:
    """Above three node time-outs and not above max_ttl; nothing is sent otherwise."""
    with pytest.raises(ConfigurationError, match="ttl"):
        redlock.acquire("k", ttl)

    assert asked(nodes) == []


# -- release ---------------------------------------------------------------------


def test_release_frees_the_lock_everywhere(nodes: FakeNodes, redlock: Redlock) -> None:
    """One round trip; the lease says so; the key can be taken again."""
    lease = redlock.acquire("k")
    nodes.asked.clear()

    assert redlock.release(lease) == 5

    assert asked(nodes) == ["release"]
    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    assert holders(nodes) == NOBODY
    assert redlock.acquire("k").is_valid()


def test_release_twice_is_harmless(redlock: Redlock, rival: Redlock) -> None:
    """The second time nothing is ours, and a successor's lock stays."""
    lease = redlock.acquire("k")
    redlock.release(lease)
    successor = rival.acquire("k")

    assert redlock.release(lease) == 0
    assert rival.inspect("k").votes == 5
    assert successor.is_valid()


def test_release_after_the_end_never_touches_a_successor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Compare and delete: the lock is another's by now."""
    lease = redlock.acquire("k")
    clock.advance(TTL + 0.01)
    successor = rival.acquire("k")

    assert redlock.release(lease) == 0
    assert holders(nodes) == [successor.token] * 5


def test_release_of_a_lost_lease_keeps_it_lost(redlock: Redlock) -> None:
    """A state only moves on; that it was lost must not be forgotten."""
    lease = redlock.acquire("k")
    lease.state = LeaseState.LOST

    redlock.release(lease)

    assert lease.state is LeaseState.LOST


def test_release_does_not_wait_for_the_slow(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """A majority is enough to go on; the others are told all the same."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1)
    before = clock.monotonic()

    assert redlock.release(lease) == 3

    assert clock.monotonic() == before
    nodes.thaw()
    assert holders(nodes) == NOBODY


def test_release_reaches_nodes_that_granted_too_late(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Also the votes that nobody waited for are given back."""
    nodes.freeze(0, 1)
    lease = redlock.acquire("k")
    assert lease.votes == 3
    redlock.release(lease)

    nodes.thaw()

    assert holders(nodes) == NOBODY


def test_release_with_keep_lets_it_end_by_itself(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """``hold_at_least``: taken until then, and not trusted by its holder."""
    lease = redlock.acquire("k")

    assert redlock.release(lease, keep=2.5) == 5

    assert ttls(nodes) == [2500] * 5
    assert not lease.is_valid()
    with pytest.raises(LockHeld):
        rival.acquire("k")
    clock.advance(2.501)
    assert rival.acquire("k").is_valid()


@pytest.mark.parametrize("keep", [0.0, -1.0, 0.0001])
def test_release_with_nothing_to_keep_deletes(
    nodes: FakeNodes, redlock: Redlock, keep: float
) -> None:
    """Less than a millisecond is not worth keeping."""
    lease = redlock.acquire("k")

    redlock.release(lease, keep=keep)

    assert holders(nodes) == NOBODY


def test_release_base_frees_whatever_attempt_holds_it(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock
) -> None:
    """Who outlives the holder knows the base and not the attempt."""
    base, another = new_base(), new_base()
    rival.acquire("k", base=base)

    assert redlock.release_base("k", another) == 0
    assert redlock.release_base("k", base[:-1]) == 0
    assert redlock.release_base("k", base) == 5
    assert holders(nodes) == NOBODY


# -- inspect, confirm ------------------------------------------------------------


def test_inspect_of_a_free_key(redlock: Redlock) -> None:
    """Nobody, no votes, no time."""
    inspection = redlock.inspect("k")

    assert (inspection.key, inspection.holder) == ("k", None)
    assert (inspection.votes, inspection.ttl_left) == (0, 0.0)
    assert inspection.ballot.answered == 5


def test_inspect_tells_who_holds_it(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock, clock: FakeClock
) -> None:
    """Holder, votes and time, without changing anything."""
    lease = rival.acquire("k")
    clock.advance(4.0)

    inspection = redlock.inspect("k")

    assert inspection.holder is not None
    assert inspection.holder.token == lease.token
    assert (inspection.votes, inspection.ttl_left) == (5, 6.0)
    assert ttls(nodes) == [6000] * 5


def test_inspect_takes_a_minority_for_no_holder(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two of five are nobody's lock; they are counted."""
    hold(nodes, 0, 1)

    inspection = redlock.inspect("k")

    assert (inspection.holder, inspection.votes) == (None, 2)
    assert inspection.ttl_left == 0.0


def test_inspect_asks_everyone(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """What a majority says is not enough for a picture of all."""
    redlock.acquire("k")
    nodes.latency(0.04, 4)

    assert redlock.inspect("k").votes == 5


def test_confirm_believes_a_majority(nodes: FakeNodes, redlock: Redlock) -> None:
    """Three of five name us: it is ours."""
    lease = redlock.acquire("k")
    forget(nodes, 0)
    nodes.nodes[1].kill()

    lease.ensure(network=True)


@pytest.mark.parametrize("successor", ["", "other.1"])
def test_confirm_notices_that_the_lock_was_taken_away(
    nodes: FakeNodes, redlock: Redlock, successor: str
) -> None:
    """An operator, or a wipe: the clock says valid and the nodes say no."""
    lease = redlock.acquire("k")
    forget(nodes, 0, 1, 2)
    if successor:
        hold(nodes, 0, 1, 2, by=successor)

    lease.ensure()
    with pytest.raises(LockLost) as caught:
        lease.ensure(network=True)

    assert (caught.value.key, caught.value.fence) == ("k", lease.fence)


def test_confirm_without_enough_answers_cannot_tell(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Silence is neither yes nor no."""
    lease = redlock.acquire("k")
    nodes.freeze(0, 1, 2)

    with pytest.raises(QuorumUnreachable):
        lease.ensure(network=True)


def test_confirm_counts_whether_silence_could_make_a_majority(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Two say yes, two no, one nothing: perhaps. One yes, three no: lost."""
    lease = redlock.acquire("k")
    nodes.freeze(0)
    forget(nodes, 3, 4)

    with pytest.raises(QuorumUnreachable):
        lease.ensure(network=True)

    forget(nodes, 2)
    with pytest.raises(LockLost):
        lease.ensure(network=True)


# -- check -----------------------------------------------------------------------


def test_check_of_healthy_nodes_finds_nothing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """All vote, and no lock is left by the asking."""
    report = redlock.check()

    assert report.problems == []
    assert report.has_quorum
    assert report.waits is None
    names = nodes.nodes[0].memory.redis.keys()
    assert sorted(names) == [b"redlock:fence", b"redlock:meta"]


def test_check_begins_the_quarantine_of_new_nodes(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock
) -> None:
    """Asked at worker start, so that the wait is over sooner."""
    for node in nodes.nodes[:3]:
        node.restart()
    nodes.nodes[4].kill()

    report = redlock.check()

    assert not report.has_quorum
    assert report.waits == pytest.approx(62.2)
    assert report.problems == [
        "node-1:6379/0 is in quarantine for 62.2 s",
        "node-2:6379/0 is in quarantine for 62.2 s",
        "node-3:6379/0 is in quarantine for 62.2 s",
        "node-5:6379/0 refused the connection",
    ]


# -- the service -----------------------------------------------------------------


def test_building_one_asks_nothing() -> None:
    """No question, no connection: that is for the first use."""
    nodes = FakeNodes(3)

    Redlock(nodes.urls, transport=nodes, clock=nodes.clock)

    assert asked(nodes) == []


def test_repr_names_nodes_and_no_password() -> None:
    """What ends up in logs."""
    redlock = Redlock(["redis://user:secret@a:1/2", "unix:///s.sock"])

    assert repr(redlock) == "<Redlock a:1/2, /s.sock/0>"


def test_close_ends_the_conversation_and_the_next_use_begins_another(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A closed service is opened by using it."""
    redlock.acquire("a")
    redlock.close()

    assert redlock.acquire("b").votes == 5


def test_errors_of_acquire_have_one_ancestor(
    nodes: FakeNodes, redlock: Redlock, rival: Redlock
) -> None:
    """Whatever the reason, "not now" is one ``except``."""
    rival.acquire("held")
    with pytest.raises(LockUnavailable):
        redlock.acquire("held")
    nodes.partition()
    with pytest.raises(LockUnavailable):
        redlock.acquire("k")


def test_server_error_is_a_refusal_with_its_words(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Somebody else's key of that name is no vote and no exception of redis-py."""
    for node in nodes.nodes[:3]:
        node.memory.redis.hset(b"redlock:lock:k", {b"field": b"theirs"})

    with pytest.raises(QuorumUnreachable, match="node-1:6379/0 answered WRONGTYPE"):
        redlock.acquire("k")
