"""The restart guard: views, replacement, quarantine, founding, recovery of fences."""

from __future__ import annotations

import logging
from dataclasses import replace
from unittest import mock

import pytest

from celery_redlock import scripts
from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from celery_redlock.members.restart_guard import counters_in, greatest
from celery_redlock.members.view import UNKNOWN, View
from celery_redlock.testing import FakeClock, FakeNodes
from celery_redlock.testing.network import FakeNode
from celery_redlock.wire.quorum import Vote, VoteKind
from tests.unit.lock.support import (
    OVER,
    QUARANTINE,
    Site,
    args_of,
    asked,
    ballot_of,
    close,
    configure,
    counters,
    forget,
    holders,
    kinds,
    new_client,
    numbers_of,
    outlast_quarantine,
    restart,
    view_of,
    voting,
)

ALL, TOLERANCE = [True] * 5, 15_000_000  # µs, a quarter of max_ttl
PAUSE = 0.3  # seconds, longer than the guard pauses between two tries


def field(nodes: FakeNodes, index: int, name: str) -> str:
    """Return what one node knows of itself."""
    found = nodes.nodes[index].memory.redis.hgetall(b"redlock:meta").get(name.encode())
    return (found or b"").decode()


def views(nodes: FakeNodes) -> list[View | None]:
    """Return the view of each node."""
    return [View.parse(field(nodes, i, "config")) for i in range(len(nodes.nodes))]


def go_on(
    redlock: Redlock, clock: FakeClock, seconds: float, step: float = 5.0
) -> None:
    """Check the nodes again and again for this time, as workers do."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        redlock.check()
        clock.advance(step)
    redlock.check()


# -- confirmations -----------------------------------------------------------------


def test_confirmations_admit_to_the_view_for_which_they_were_given(site: Site) -> None:
    """Another thread may learn a later view between the answers and SYNC."""
    outlast_quarantine(site, 0)
    confirmed = view_of(site.redlock)
    later = confirmed.with_newcomer(site.nodes.labels[1], "5e")
    ask = site.redlock.guard.ask

    def ask_and_learn(script: scripts.Script, args: list[object]) -> object:
        request = ask(script, args)
        if script is scripts.COUNTERS:
            site.redlock.guard.use(later)
        return request

    with mock.patch.object(site.redlock.guard, "ask", ask_and_learn):
        site.redlock.check()

    assert {sync[0] for sync in args_of(site.nodes, "sync")} == {str(confirmed)}


# -- the view of a client ----------------------------------------------------------


def test_view_that_was_merged_is_noted_by_the_nodes(site: Site) -> None:
    """They would refuse the next request of this client once more."""
    first, second, *_ = site.nodes.labels
    view, guard = view_of(site.redlock), site.redlock.guard
    guard.use(view.with_newcomer(first, "5e"))
    told = Vote(VoteKind.REFUSED, value=str(view.with_newcomer(second, "07")))

    assert guard.adopt(ballot_of([told], site.nodes.labels))

    merged = view.with_newcomer(first, "5e").with_newcomer(second, "07")
    assert views(site.nodes) == [view, view, *[merged] * 3]  # two are no members now


def test_votes_can_be_read_without_bringing_nodes_back(site: Site) -> None:
    """A look begins no quarantine, but the client learns the view of the nodes."""
    restart(site.nodes, 0)
    other = site.nodes.another_client()
    guard = new_client(other).guard

    ballot = guard.votes(brings_back=False)

    assert kinds(ballot) == [VoteKind.UNSYNCED, *[VoteKind.GRANTED] * 4]
    assert asked(other) == ["counters"] * 2
    assert kinds(guard.votes(brings_back=False)) == kinds(ballot)
    assert asked(other) == ["counters"] * 3
    assert kinds(guard.votes())[0] is VoteKind.QUARANTINED


def test_new_client_learns_the_view_with_one_more_request(site: Site) -> None:
    """The nodes refuse the first one, and the refusal has their view."""
    other = site.nodes.another_client()
    client = new_client(other)
    assert client.guard.view is None

    assert client.acquire("k").votes == 5

    assert client.guard.view == site.redlock.guard.view
    assert [name for name in asked(other) if name != "release"] == ["acquire"] * 2


def test_callers_that_learn_the_view_at_once_all_ask_again(site: Site) -> None:
    """The first one changes the view of the client; the others were asked before."""
    client = new_client(site.nodes.another_client())
    requests = [client.guard.ask(scripts.COUNTERS, [client.guard.config]) for _ in "ab"]

    assert [client.guard.recover(request.ballot) for request in requests] == [True] * 2
    assert not client.guard.recover(client.guard.votes(brings_back=False))


def test_client_adopts_the_view_of_a_majority_only(site: Site) -> None:
    """Of another epoch: a minority may have been left behind, or in other use."""
    view = view_of(site.redlock)
    grown = str(replace(view, epoch=view.epoch + 1))
    configure(site.nodes, grown, 0, 1)
    guard = site.redlock.guard

    assert not guard.adopt(guard.votes(brings_back=False))
    configure(site.nodes, grown, 2)
    assert guard.adopt(guard.votes(brings_back=False))
    assert guard.config == grown
    assert not guard.adopt(guard.votes(brings_back=False))


def test_client_that_holds_a_lock_renews_it_in_the_view_of_others(site: Site) -> None:
    """A request is refused: the client still counted on the node that restarted."""
    lease = site.redlock.acquire("k")
    restart(site.nodes, 0)
    site.rival.check()  # the other nodes note it

    assert site.redlock.extend(lease)

    assert lease.votes == 4


@pytest.mark.parametrize("options", [{"max_ttl": 90.0}, {"restart_guard": False}])
def test_client_of_other_settings_is_refused_and_changes_nothing(
    site: Site, options: dict[str, float]
) -> None:
    """Also when nodes are without a view. The error has the difference."""
    other_nodes = site.nodes.another_client()
    other = other_nodes.redlock(**options)
    lease = site.redlock.acquire("k")
    restart(site.nodes, 0, 1)
    before = views(site.nodes)[2:]

    with pytest.raises(QuorumUnreachable) as caught:
        other.acquire("k", wait=1.0)

    assert "this client has" in str(caught.value)
    assert caught.value.retry_after is None
    assert views(site.nodes)[2:] == before
    assert views(site.nodes)[:2] == [None, None]
    assert lease.is_valid()
    assert not {"note", "sync"} & set(asked(other_nodes))


def test_prefixes_are_deployments_of_their_own(site: Site) -> None:
    """Deployments with different prefixes share the servers and nothing else."""
    site.redlock.acquire("k")
    other = site.nodes.another_client().redlock(prefix="other")
    other.guard.initialize()

    assert other.acquire("k").votes == 5
    with pytest.raises(LockHeld):
        other.acquire("k")
    assert site.nodes.nodes[0].memory.redis.get(b"other:lock:k")


@pytest.mark.parametrize("fault", ["in other use", "away"])
def test_nodes_are_initialized_all_or_none(clock: FakeClock, fault: str) -> None:
    """A view without one of them would never have it."""
    nodes = FakeNodes(3, clock=clock)
    redlock = new_client(nodes)
    if fault == "away":
        nodes.partition(1)
    else:
        configure(nodes, "of others", 1)

    ballot = redlock.guard.initialize()

    assert ballot.granted < 3
    assert "node-2" in ballot.reasons() or fault == "in other use"
    assert redlock.guard.view is None
    assert asked(nodes) == ["join"] if fault == "away" else ["join", "counters"]
    assert views(nodes) == [None] * 3


def test_nodes_that_vote_are_not_initialized_again(clock: FakeClock) -> None:
    """A second command takes over their view, if a majority has it."""
    nodes = FakeNodes(3, clock=clock)
    redlock = new_client(nodes)
    redlock.guard.initialize()
    restart(nodes, 2)
    again = new_client(nodes.another_client())

    assert again.guard.initialize().granted == 2

    assert view_of(again) == view_of(redlock)


def test_first_fences_are_above_the_clocks_of_nodes_and_clients(
    clock: FakeClock,
) -> None:
    """By the tolerance for the client's clock, and by that for its hints."""
    nodes = FakeNodes(3, clock=clock)

    new_client(nodes).guard.initialize()

    floor = round(clock.wall() * 1e6) + 2 * TOLERANCE
    assert counters(nodes, b"floor") == [floor] * 3


# -- replacement -------------------------------------------------------------------


@pytest.mark.parametrize("keep_memory", [False, True])
def test_restarted_node_does_not_vote_for_a_quarantine(
    site: Site, *, keep_memory: bool
) -> None:
    """With or without memory: the data that it saved last may be old."""
    restart(site.nodes, 0, keep_memory=keep_memory)

    assert voting(site.redlock) == [False, True, True, True, True]
    site.clock.advance(QUARANTINE - 0.001)
    assert not voting(site.redlock)[0]
    site.clock.advance(0.002)
    assert voting(site.redlock) == ALL


def test_all_nodes_note_a_replacement(site: Site) -> None:
    """In one view, which has the new identity in the place of the old one."""
    before = view_of(site.redlock)
    restart(site.nodes, 2)

    site.redlock.check()

    label = site.nodes.labels[2]
    after = before.with_newcomer(label, field(site.nodes, 2, "identity"))
    assert views(site.nodes) == [after] * 5
    assert view_of(site.redlock) == after


def test_quarantine_begins_when_it_is_noticed(site: Site) -> None:
    """No wrong clock of the past can shorten the quarantine."""
    restart(site.nodes, 0)
    site.clock.advance(3600.0)

    assert not voting(site.redlock)[0]
    site.clock.advance(QUARANTINE - 1.0)
    assert not voting(site.redlock)[0]


def test_restart_in_quarantine_begins_it_anew(site: Site) -> None:
    """Each loss of memory has a quarantine of its own."""
    restart(site.nodes, 0)
    voting(site.redlock)
    site.clock.advance(QUARANTINE - 1.0)
    restart(site.nodes, 0)
    voting(site.redlock)
    site.clock.advance(2.0)

    assert not voting(site.redlock)[0]
    site.clock.advance(OVER)
    assert voting(site.redlock) == ALL


def test_node_in_quarantine_counts_in_no_renewal(site: Site) -> None:
    """Its place may be given away. It releases, and takes the lock when it votes."""
    lease = site.redlock.acquire("k", ttl=60.0)
    restart(site.nodes, 0, 1)
    forget(site.nodes, 2)
    site.redlock.check()

    assert site.redlock.extend(lease)
    assert holders(site.nodes) == ["", "", *[lease.token] * 3]
    site.clock.advance(OVER - 40.0)
    assert site.redlock.extend(lease)
    site.clock.advance(40.0)
    site.redlock.check()
    assert site.redlock.extend(lease)
    assert site.redlock.extend(lease)
    assert holders(site.nodes) == [lease.token] * 5


def test_one_node_after_the_other_is_replaced_in_one_epoch(site: Site) -> None:
    """All five, more than once, and each fence is greater than all before."""
    fences = []
    for index in (0, 3, 1, 4, 2, 0):
        lease = site.redlock.acquire("k")
        fences.append(lease.fence)
        site.redlock.release(lease)
        site.clock.step_wall(-1000.0)
        restart(site.nodes, index)
        site.redlock.check()
        site.clock.advance(OVER)
        site.redlock.check()

    assert fences == sorted(set(fences))
    assert voting(site.redlock) == ALL
    assert view_of(site.redlock).epoch == 1
    assert numbers_of(site.redlock) == [2, 1, 1, 1, 1]


def test_newcomer_waits_until_others_have_known_it_for_a_quarantine(site: Site) -> None:
    """Its own wait is not enough: a node that did not hear of it votes for the old."""
    restart(site.nodes, 0)
    site.redlock.check()
    for index in (1, 2):
        known = str(round(site.clock.wall() * 1000) + 30_000).encode()
        redis = site.nodes.nodes[index].memory.redis
        redis.hset(b"redlock:meta", {f"known:{site.nodes.labels[0]}".encode(): known})
    site.clock.advance(OVER)

    assert not voting(site.redlock)[0]
    site.clock.advance(30.0)
    assert voting(site.redlock) == ALL


def test_newcomer_needs_more_than_a_minority_of_others(site: Site) -> None:
    """It needs three of the four others (r = N − q + 1); with two, it waits."""
    outlast_quarantine(site, 0)
    site.nodes.freeze(1, 2)

    go_on(site.redlock, site.clock, 1.0, step=PAUSE)
    assert "sync" not in asked(site.nodes)

    site.nodes.thaw(1)
    site.clock.advance(PAUSE)
    site.redlock.check()
    assert voting(site.redlock)[0]


def test_newcomer_that_restarts_before_it_is_confirmed_is_not(site: Site) -> None:
    """The counters were read for another identity. A new quarantine begins."""
    outlast_quarantine(site, 0)
    site.nodes.latency(0.01)
    site.clock.at(0.035, lambda: restart(site.nodes, 0))

    site.redlock.check()

    assert not voting(site.redlock)[0]
    site.clock.advance(OVER)
    site.redlock.check()
    assert voting(site.redlock)[0]


def test_two_servers_under_one_name_do_not_both_vote(site: Site) -> None:
    """The first that was noted keeps the place, and the error says what is wrong."""
    stranger = FakeNode(site.nodes.labels[0], site.clock)
    elsewhere = FakeNodes([stranger, *site.nodes.nodes[1:]], clock=site.clock)
    other = new_client(elsewhere)
    other.check()  # the name leads it to a server without memory

    go_on(other, site.clock, OVER)

    assert voting(other) == ALL
    assert voting(site.redlock) == [False, True, True, True, True]
    first = site.redlock.check().ballot.votes[0]
    assert first is not None
    assert first.kind is VoteKind.REFUSED
    for _ in range(3):  # and it stays so: they do not replace each other in turn
        site.clock.advance(PAUSE)
        assert voting(other) == ALL
        assert not voting(site.redlock)[0]


def test_two_candidates_for_one_place_end_as_one(site: Site) -> None:
    """Two clients reach two new servers there, at the same time."""
    strangers = [FakeNode(site.nodes.labels[0], site.clock) for _ in range(2)]
    clients = [
        new_client(FakeNodes([stranger, *site.nodes.nodes[1:]], clock=site.clock))
        for stranger in strangers
    ]
    view = view_of(site.redlock)
    for client in clients:  # each has made its view before it hears of the other
        looks = [look for look in client.guard.look() if look]
        grown = view.with_newcomer(looks[0].label, looks[0].identity)
        client.guard.ask(scripts.NOTE, [str(grown), client.guard.quarantine_ms])

    for _ in range(20):
        for client in clients:
            client.check()
        site.clock.advance(5.0)

    assert sorted(voting(client)[0] for client in clients) == [False, True]
    assert all(voting(client)[1:] == [True] * 4 for client in clients)
    assert len({client.guard.config for client in clients}) == 1


def test_clients_that_look_at_once_come_to_one_view(site: Site) -> None:
    """Each of them notes, and confirms, and none undoes what another did."""
    clients = [
        site.redlock,
        site.rival,
        new_client(site.nodes.another_client()),
    ]
    restart(site.nodes, 0)
    for client in clients:
        client.check()
        restart(site.nodes, 1)  # what the last one noted is old
    for _ in range(15):
        for client in clients:
            client.check()
        site.clock.advance(5.0)

    assert [voting(client) for client in clients] == [ALL] * 3
    assert len({str(view) for view in views(site.nodes)}) == 1


def test_node_that_missed_a_replacement_learns_of_it(site: Site) -> None:
    """It was cut off, votes in the old view, and is asked with the new one."""
    site.nodes.partition(4)
    restart(site.nodes, 0)
    site.redlock.check()
    site.nodes.heal(4)
    site.clock.advance(PAUSE)

    site.redlock.check()

    assert views(site.nodes) == [view_of(site.redlock)] * 5


def test_wait_that_a_clock_ahead_has_stored_begins_anew(site: Site) -> None:
    """Also where the other nodes are a majority, which grants all the time."""
    restart(site.nodes, 0)
    site.redlock.acquire("k")
    hour_ms = 3_600_000
    until = str(int(field(site.nodes, 0, "quarantine_until")) + hour_ms).encode()
    memory = site.nodes.nodes[0].memory.redis
    memory.hset(b"redlock:meta", {b"quarantine_until": until})

    go_on(site.redlock, site.clock, 2 * OVER)

    assert voting(site.redlock) == ALL


def test_nodes_are_looked_at_once_in_a_while(site: Site) -> None:
    """Once in 0.2 s while they say the same, because reading all is not free."""
    outlast_quarantine(site, 0)
    site.nodes.nodes[1].kill()
    site.nodes.nodes[2].kill()
    site.nodes.asked.clear()
    for _ in range(5):
        site.redlock.check()

    assert asked(site.nodes).count("join") == 1
    site.clock.advance(0.2)
    site.redlock.check()
    assert asked(site.nodes).count("join") == 2


# -- fences ------------------------------------------------------------------------


def test_node_votes_again_with_the_fences_of_other_nodes(site: Site) -> None:
    """After the quarantine its counters are those of r = N − q + 1 others."""
    lease = site.redlock.acquire("k")
    site.redlock.release(lease)
    outlast_quarantine(site, 0)

    site.redlock.check()

    assert counters(site.nodes)[0] >= lease.fence
    assert [args[2] for args in args_of(site.nodes, "sync")] == [0]


def test_acquire_recovers_nodes_that_it_needs(site: Site) -> None:
    """One node is down and two restarted: their votes are recovered at once."""
    outlast_quarantine(site, 0, 1)
    before = site.clock.monotonic()
    site.nodes.asked.clear()
    site.nodes.partition(2)

    site.nodes.heal(2)
    lease = site.redlock.acquire("k")

    assert lease.votes >= 3
    assert site.clock.monotonic() == before
    assert "sync" in asked(site.nodes)
    assert voting(site.redlock) == ALL


def test_recovery_takes_the_greatest_of_each_counter(site: Site) -> None:
    """The greatest number of each field, from all nodes that confirm: 11, not 9."""
    outlast_quarantine(site, 0)
    # No key has these counters: a check takes that of a random one of 4096.
    fields = [b"5000", b"5001", b"5002", b"5003"]
    for index, counter in enumerate([b"8", b"11", b"9", b"10"]):
        redis = site.nodes.nodes[index + 1].memory.redis
        redis.hset(b"redlock:meta", {fields[index]: b"70", b"5004": counter})

    site.redlock.check()

    assert [counters(site.nodes, name)[0] for name in fields] == [70] * 4
    assert counters(site.nodes, b"5004")[0] == 11


# -- founding ----------------------------------------------------------------------


def test_restarted_majority_lets_no_second_holder_in(site: Site, lease: Lease) -> None:
    """Plain Redlock would grant: three empty nodes are a majority of five."""
    restart(site.nodes, 0, 1, 2)

    with pytest.raises(QuorumUnreachable) as caught:
        site.rival.acquire("k")

    assert caught.value.retry_after == pytest.approx(QUARANTINE)
    assert lease.is_valid()


def test_restarted_majority_founds_the_next_epoch_with_all(site: Site) -> None:
    """All nodes vote after one quarantine. TIME is the floor."""
    lease = site.redlock.acquire("k")
    before = view_of(site.redlock)
    restart(site.nodes, 0, 1, 2)
    site.redlock.check()
    assert voting(site.redlock) == [False] * 5
    site.clock.advance(OVER)

    after = site.redlock.acquire("k")

    assert after.fence > lease.fence
    assert voting(site.redlock) == ALL
    view = view_of(site.redlock)
    assert (view.deployment, view.epoch) == (before.deployment, before.epoch + 1)
    assert view.is_founded
    assert (
        counters(site.nodes, b"floor")[0] == round(site.clock.wall() * 1e6) + TOLERANCE
    )


def test_new_deployment_waits_for_one_quarantine(clock: FakeClock) -> None:
    """Nodes that were not initialized found their first epoch."""
    redlock = new_client(FakeNodes(3, clock=clock))
    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")
    assert caught.value.retry_after == pytest.approx(QUARANTINE)

    clock.advance(OVER)

    assert redlock.acquire("k").is_valid()


def test_new_deployment_waits_for_an_absent_node_for_one_max_ttl(
    clock: FakeClock,
) -> None:
    """Then the others found it without the node."""
    nodes = FakeNodes(3, clock=clock)
    nodes.partition(2)
    redlock = new_client(nodes)
    go_on(redlock, clock, 50.0)
    assert views(nodes) == [None] * 3

    go_on(redlock, clock, 15.0, step=1.0)
    founded = view_of(redlock)
    go_on(redlock, clock, 60.0 + OVER)

    unknown = [member.identity == UNKNOWN for member in founded.members]
    assert unknown == [False, False, True]
    assert voting(redlock) == [True, True, False]
    nodes.heal()
    go_on(redlock, clock, OVER + 5.0)
    assert voting(redlock) == [True] * 3
    assert view_of(redlock).epoch == 1


def test_client_that_reaches_a_minority_founds_nothing(site: Site) -> None:
    """Otherwise one client behind a firewall keeps a restarted node out for ever."""
    lonely_nodes = site.nodes.another_client()
    lonely = lonely_nodes.redlock()
    lonely_nodes.partition(2, 3, 4)
    go_on(lonely, site.clock, 90.0)
    restart(site.nodes, 0, 1)

    for _ in range(60):
        lonely.check()
        site.redlock.check()
        site.clock.advance(5.0)

    assert voting(site.redlock) == ALL
    assert view_of(site.redlock).epoch == 1


def test_two_short_silences_are_not_one_long_silence(site: Site) -> None:
    """The nodes may have been there between two looks that are far apart."""
    restart(site.nodes, 0, 1, 2)
    site.nodes.partition(4)
    site.redlock.check()  # one look, and then none for longer than a max_ttl
    site.clock.advance(61.0)

    site.redlock.check()
    site.clock.advance(1.0)
    site.redlock.check()

    assert view_of(site.redlock).epoch == 1


def test_node_that_answered_in_between_was_not_silent(site: Site) -> None:
    """Its silence begins anew, and no epoch is founded without it before the end."""
    restart(site.nodes, 0, 1, 2)
    site.nodes.partition(3, 4)
    go_on(site.redlock, site.clock, 40.0)
    site.nodes.heal(4)
    go_on(site.redlock, site.clock, 1.0, step=1.0)
    site.nodes.partition(4)

    go_on(site.redlock, site.clock, 30.0)

    assert view_of(site.redlock).epoch == 1


def test_silent_members_are_waited_for_before_a_founding(site: Site) -> None:
    """Three restarted, and one is away: it may have what they forgot."""
    restart(site.nodes, 0, 1, 2)
    site.nodes.partition(4)

    go_on(site.redlock, site.clock, 30.0)
    assert view_of(site.redlock).epoch == 1
    site.nodes.heal(4)
    go_on(site.redlock, site.clock, OVER + 1.0)

    assert voting(site.redlock) == ALL


def test_nodes_that_are_gone_for_good_do_not_end_the_deployment(site: Site) -> None:
    """One restarted, two are gone: after a max_ttl the three go on alone."""
    outlast_quarantine(site, 0)
    site.nodes.nodes[1].kill()
    site.nodes.nodes[2].kill()

    go_on(site.redlock, site.clock, 60.0 + OVER + 60.0 + 10.0)

    assert voting(site.redlock) == [True, False, False, True, True]
    assert view_of(site.redlock).epoch == 2


def test_member_that_comes_back_from_an_earlier_epoch_joins_anew(site: Site) -> None:
    """It was taken to be gone, has its memory, and votes in a view of its own."""
    restart(site.nodes, 0, 1, 2)
    site.nodes.partition(4)
    go_on(site.redlock, site.clock, 60.0 + 2 * OVER)
    assert voting(site.redlock) == [True, True, True, True, False]
    site.nodes.heal(4)

    go_on(site.redlock, site.clock, OVER + 5.0)

    assert voting(site.redlock) == ALL
    assert view_of(site.redlock).epoch == 2


@pytest.mark.parametrize("again", [(0,), (0, 1, 2), (0, 1, 2, 3, 4), (3, 4)])
def test_founder_that_restarts_again_votes_in_the_end(
    site: Site, again: tuple[int, ...]
) -> None:
    """Before the founders vote, when too few are left to confirm it, or not."""
    restart(site.nodes, 0, 1, 2)
    site.redlock.check()
    site.clock.advance(QUARANTINE / 2)
    restart(site.nodes, *again)

    go_on(site.redlock, site.clock, 3 * OVER)

    assert voting(site.redlock) == ALL


def test_single_node_founds_each_epoch_alone(clock: FakeClock) -> None:
    """N = 1: there are no other nodes."""
    nodes = FakeNodes(1, clock=clock)
    redlock = nodes.redlock()
    lease = redlock.acquire("k")
    nodes.nodes[0].restart()
    redlock.check()
    clock.advance(OVER)

    assert redlock.acquire("k").fence > lease.fence


def test_two_nodes_admit_each_other(clock: FakeClock) -> None:
    """N = 2: each is enough to confirm the other; both restarted are a founding."""
    nodes = FakeNodes(2, clock=clock)
    redlock = nodes.redlock()
    restart(nodes, 0)
    go_on(redlock, clock, OVER)
    assert voting(redlock) == [True] * 2
    assert view_of(redlock).epoch == 1

    restart(nodes, 0, 1)
    go_on(redlock, clock, OVER)
    assert voting(redlock) == [True] * 2
    assert view_of(redlock).epoch == 2


def test_founding_by_two_clients_at_once_ends_in_one_epoch(clock: FakeClock) -> None:
    """Each makes a deployment of its own; the nodes come to one of them."""
    nodes = FakeNodes(3, clock=clock)
    clients = [new_client(nodes.another_client()) for _ in range(2)]
    for client in clients:
        looks = [look for look in client.guard.look() if look]
        view = client.guard._found(None, looks)  # noqa: SLF001
        index = clients.index(client)
        node, look = nodes.nodes[index], looks[index]
        assert look.identity in str(view)
        args = [str(view), client.guard.quarantine_ms]
        node.memory.execute(scripts.NOTE, ["redlock:meta"], args)

    for _ in range(15):
        for client in clients:
            client.check()
        clock.advance(5.0)

    assert [voting(client) for client in clients] == [[True] * 3] * 2
    assert len({client.guard.config for client in clients}) == 1


@pytest.mark.parametrize("epochs", [(1, 9), (9, 1)])
def test_deployments_that_met_half_way_become_one(
    clock: FakeClock, epochs: tuple[int, int]
) -> None:
    """A network was split while both halves began, and one node votes already.

    A node that votes does not leave its deployment, so the others come to it.
    """
    nodes = FakeNodes(3, clock=clock)
    redlock = new_client(nodes)
    looks = [look for look in redlock.guard.look() if look]
    for place, epoch in zip((0, 1), epochs, strict=True):
        view = redlock.guard._found(None, looks[place : place + 1])  # noqa: SLF001
        text = str(view).replace("epoch 1.", f"epoch {epoch}.")
        node = nodes.nodes[place].memory
        wait = redlock.guard.quarantine_ms if place else 0
        node.execute(scripts.NOTE, ["redlock:meta"], [text, wait])
        if place == 0:
            sync = [text, looks[0].identity, 1, TOLERANCE]
            node.execute(scripts.SYNC, ["redlock:meta"], sync)

    go_on(redlock, clock, 3 * OVER, step=1.0)

    assert voting(redlock) == [True] * 3


def test_node_of_another_deployment_prevents_a_founding(site: Site) -> None:
    """A majority without memory does not begin anew beside a node that has some."""
    restart(site.nodes, 0, 1, 2)
    other = str(view_of(site.redlock)).replace("max_ttl 60", "max_ttl 90")
    configure(site.nodes, other, 3)

    go_on(site.redlock, site.clock, 200.0, step=20.0)

    assert view_of(site.redlock).epoch == 1
    assert "sync" not in asked(site.nodes)


# -- beside a reconfiguration ------------------------------------------------------


def test_closed_majority_is_left_alone(site: Site) -> None:
    """Closed members are not founded anew: the others may be open elsewhere."""
    close(site.nodes, site.redlock, 0, 1, 2)
    restart(site.nodes, 3, 4)

    go_on(site.redlock, site.clock, 200.0, step=20.0)

    assert voting(site.redlock) == [False] * 5
    assert "sync" not in asked(site.nodes)


def test_closed_minority_keeps_no_other_node_from_its_vote(site: Site) -> None:
    """An aborted reconfiguration has left one node closed, for ever perhaps."""
    close(site.nodes, site.redlock, 0)
    restart(site.nodes, 1)

    go_on(site.redlock, site.clock, OVER + 5.0)

    assert voting(site.redlock) == [False, True, True, True, True]


def test_asking_again_helps_only_if_something_has_changed(site: Site) -> None:
    """A client that asked again after each look would ask for a whole quarantine."""
    restart(site.nodes, 0, 1, 2)
    site.redlock.check()
    helped = []
    for seconds in (PAUSE, PAUSE, OVER):
        site.clock.advance(seconds)
        ballot = site.redlock.guard.votes(brings_back=False)
        helped.append(site.redlock.guard.recover(ballot))

    assert helped == [False, False, True]


def test_look_reads_bytes_that_are_no_text(site: Site) -> None:
    """Another program has written to the key; the other nodes are read as ever."""
    configure(site.nodes, b"caf\xe9", 0)

    look, *others = site.redlock.guard.look()

    assert look is not None
    assert (look.config, look.view) == ("caf\ufffd", None)
    assert all(other and other.view for other in others)


def test_look_tells_what_a_closed_node_was_and_never_opens_for(site: Site) -> None:
    """A reconfiguration that is run again needs both; other nodes have neither."""
    close(site.nodes, site.redlock, 0)
    aborted = "closed for something"
    fields = {b"aborted": aborted.encode()}
    site.nodes.nodes[1].memory.redis.hset(b"redlock:meta", fields)

    looks = site.redlock.guard.look()

    assert [look and look.left for look in looks] == [
        str(view_of(site.redlock)),
        *[""] * 4,
    ]
    assert [look and look.aborted for look in looks] == ["", aborted, "", "", ""]


def test_counters_are_told_from_what_a_node_knows_of_others() -> None:
    """Only counters are handed on to a node that recovers."""
    told = [b"known:a:1/0", b"5000", b"7", b"9", b"floor", b"3"]

    assert counters_in(told) == [b"7", b"9", b"floor", b"3"]


def test_greatest_of_each_counter_is_handed_on() -> None:
    """As it is, also where it is 0."""
    told = [b"7", b"2", b"floor", b"0", b"7", b"9", b"7", b"4"]

    assert greatest(told) == [b"7", 9, b"floor", 0]


# -- what operators read -----------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[object, str]]:
    """Return the facts and the text of each log line of an event."""
    fact = "nodes" if event == "nodes-gone" else "node"
    return [
        (vars(record)[f"redlock_{fact}"], record.getMessage())
        for record in caplog.records
        if vars(record)["redlock_event"] == event
    ]


def test_log_tells_of_a_node_that_votes_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it votes, and none while it waits."""
    caplog.set_level(logging.INFO, "celery_redlock.members.restart_guard")
    restart(site.nodes, 1)
    site.redlock.check()
    assert not caplog.records
    site.clock.advance(OVER)

    site.redlock.check()

    label = site.nodes.labels[1]
    text = f"Node {label} votes again, and has the fences of the other nodes."
    assert said(caplog, "node-recovered") == [(label, text)]


def test_log_warns_that_the_order_of_fences_depends_on_clocks(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each node that votes again above its own time only."""
    outlast_quarantine(site, 0, 1, 2)

    site.redlock.acquire("k")

    warnings = said(caplog, "node-floor")
    assert [label for label, _ in warnings] == list(site.nodes.labels)
    assert [text for _, text in warnings] == [
        f"Node {label} votes again, but too few other nodes knew which fences were "
        "granted. Its next fences are greater than its own time, so their order "
        "depends on clocks."
        for label in site.nodes.labels
    ]


def test_log_says_of_a_node_alone_that_it_votes(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """No other node could have known its fences."""
    nodes = FakeNodes(1, clock=clock)
    redlock = nodes.redlock()
    restart(nodes, 0)
    redlock.check()
    clock.advance(OVER)

    redlock.check()

    (label,) = nodes.labels
    text = (
        f"Node {label} votes. Its next fences are greater than its own time, so their "
        "order depends on clocks."
    )
    assert said(caplog, "node-floor") == [(label, text)]


@pytest.mark.parametrize("count", [1, 3])
def test_first_vote_of_new_nodes_is_no_warning(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """They have granted no fence yet, so the order of none depends on clocks."""
    caplog.set_level(logging.INFO, "celery_redlock.members.restart_guard")
    names = [f"node-{number}:6379/0" for number in range(count)]
    nodes = FakeNodes([FakeNode(name, clock) for name in names], clock=clock)
    redlock = nodes.redlock()
    redlock.check()
    clock.advance(OVER)

    redlock.acquire("k")

    texts = said(caplog, "node-founded")
    assert [label for label, _ in texts] == names
    assert {text for _, text in texts} == {
        f"Node {name} votes. No client has told of earlier fences: its first ones are "
        "greater than its own time."
        for name in names
    }
    assert {one.levelname for one in caplog.records} == {"INFO"}


@pytest.mark.parametrize(
    ("restarted", "silent", "text"),
    [
        (
            [0],
            [1, 2],
            (
                "Nodes {} and {} were silent for 60 s, and too few other nodes vote to "
                "wait for them: the others found epoch 2 without them. If they are "
                "gone, replace them with `celery -A proj redlock reconfigure`."
            ),
        ),
        (
            [0, 2],
            [1],
            (
                "Node {} was silent for 60 s, and too few other nodes vote to wait for "
                "it: the others found epoch 2 without it. If it is gone, replace it "
                "with `celery -A proj redlock reconfigure`."
            ),
        ),
    ],
)
def test_log_names_the_nodes_without_which_an_epoch_begins(
    site: Site,
    caplog: pytest.LogCaptureFixture,
    restarted: list[int],
    silent: list[int],
    text: str,
) -> None:
    """The operator reads which nodes to replace, and with which command."""
    restart(site.nodes, *restarted)
    site.nodes.partition(*silent)

    go_on(site.redlock, site.clock, 60.0 + OVER)

    gone = [site.nodes.labels[index] for index in silent]
    assert said(caplog, "nodes-gone") == [(gone, text.format(*gone))]


# -- without the guard -------------------------------------------------------------


def test_guard_that_is_off_lets_all_nodes_vote(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The choice can cost exclusion: here two clients hold the lock.

    It was chosen with the setting, so no line warns of the order of fences.
    """
    nodes = FakeNodes(3, clock=clock)
    redlock = nodes.redlock(restart_guard=False)
    lease = redlock.acquire("k")
    restart(nodes, 0, 1)

    other = redlock.acquire("k", wait=1.0)

    assert lease.is_valid()
    assert other.votes >= 2
    assert other.fence > lease.fence
    assert said(caplog, "node-floor") == []


def test_new_nodes_without_the_guard_vote_at_once(clock: FakeClock) -> None:
    """They need no ``init``. A node that is away may belong to another deployment."""
    nodes = FakeNodes(3, clock=clock)
    redlock = Redlock(
        nodes.urls, transport=nodes, clock=clock, restart_guard=False, max_ttl=60.0
    )
    nodes.freeze(2)
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")
    nodes.thaw(2)

    assert redlock.acquire("k", wait=1.0).is_valid()


def test_quarantine_and_hint_follow_from_max_ttl(nodes: FakeNodes) -> None:
    """The quarantine outlasts every forgotten lock; hints may be off by a quarter."""
    redlock = nodes.redlock(max_ttl=100.0)

    _, _, args = redlock.acquire_request("k", ttl=10, token="t", holder_info="").call

    assert (args[4], redlock.guard.quarantine_ms) == (25_000_000, 103_000)
    assert nodes.redlock(restart_guard=False).guard.quarantine_ms == 0
    assert kinds(redlock.check().ballot) == [VoteKind.GRANTED] * 5


@pytest.mark.parametrize(("count", "tolerance"), [(1, 0), (2, TOLERANCE)])
def test_only_a_node_alone_numbers_grants_by_its_own_time(
    clock: FakeClock, count: int, tolerance: int
) -> None:
    """The clock of the client does not matter to it; several need one number."""
    redlock = FakeNodes(count, clock=clock).redlock()

    _, _, args = redlock.acquire_request("k", ttl=10, token="t", holder_info="").call

    hint = -1 if count == 1 else round(clock.wall() * 1_000_000)
    assert args[3:5] == (hint, tolerance)


def test_node_at_the_begin_of_its_quarantine_needs_no_look(redlock: Redlock) -> None:
    """One that tells of a longer wait has an instant of a clock that was ahead."""
    guard = redlock.guard
    votes = [Vote(VoteKind.GRANTED)] * 3

    def has_work(wait_ms: int) -> bool:
        waits = Vote(VoteKind.QUARANTINED, wait_ms)
        return guard.has_work(ballot_of([*votes, waits]))

    assert not has_work(guard.quarantine_ms)
    assert has_work(guard.quarantine_ms + 1)
