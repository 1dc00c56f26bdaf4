"""Conclusions of the restart guard from what the nodes say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from celery_redlock import scripts
from celery_redlock.locks.redlock import Redlock
from celery_redlock.members.configuration import Configuration
from celery_redlock.members.restart_guard import NodeMembership, RestartGuard
from celery_redlock.members.view import JOINED, Member, View
from celery_redlock.testing import FakeClock, FakeNodes
from celery_redlock.wire.quorum import Ballot, Vote, VoteKind
from tests.harness.threads import threads_started_here
from tests.unit.lock.support import (
    OVER,
    Site,
    args_of,
    asked,
    ballot_of,
    configure,
    new_client,
    numbers_of,
    restart,
    view_of,
    voting,
)

NEW = "5e5e"  # the identity of a server that is in no view yet


@pytest.fixture
def guard(redlock: Redlock) -> RestartGuard:
    """Give the guard of a client that has a view."""
    return redlock.guard


@pytest.fixture
def view(redlock: Redlock) -> View:
    """Give the view of the client, with an epoch that has others below."""
    return replace(view_of(redlock), epoch=5)


def look_of(view: View, place: int = 0, /, **changed: Any) -> NodeMembership:
    """Return what a node says that has this view."""
    label = view.configuration.labels[place]
    identity, votes = view.member(label).identity, True
    look = NodeMembership(label, str(view), identity, votes, view, "", "")
    return look._replace(**changed)


def newcomer(view: View, place: int = 0, identity: str = NEW) -> NodeMembership:
    """Return what a node says that has joined and has no view."""
    return look_of(
        view, place, config=JOINED, identity=identity, votes=False, view=None
    )


def refusal_with(view: View) -> Vote:
    """Return the vote of a node that has this view, and refuses any other one."""
    return Vote(VoteKind.REFUSED, value=str(view))


def before(
    guard: RestartGuard, script: scripts.Script, work: Callable[[], None]
) -> Any:
    """Do this once, just before the nodes are asked by this script."""
    ask, todo = guard.ask, [work]

    def ask_later(asked: scripts.Script, args: list[object]) -> object:
        if asked is script and todo:
            todo.pop()()
        return ask(asked, args)

    return mock.patch.object(guard, "ask", ask_later)


# -- which view --------------------------------------------------------------------


def test_view_that_most_nodes_tell_is_adopted(guard: RestartGuard, view: View) -> None:
    """Two were left in a later epoch that no majority has."""
    later = replace(view, epoch=9)
    told = [refusal_with(view)] * 3 + [refusal_with(later)] * 2
    assert str(later) > str(view)

    assert guard.adopt(ballot_of([*told], view.configuration.labels))

    assert guard.view == view


def test_only_views_of_one_epoch_are_merged(guard: RestartGuard, view: View) -> None:
    """A server that took a place in another epoch has not taken it in ours."""
    guard.use(view)
    grown = view.with_newcomer(view.configuration.labels[1], NEW)
    other = replace(view, epoch=6, members=tuple(Member(9, "07") for _ in range(5)))

    assert guard.adopt(
        ballot_of([refusal_with(grown), refusal_with(other)], view.configuration.labels)
    )

    assert guard.view == grown


def test_newcomers_of_which_different_nodes_know_are_merged(
    guard: RestartGuard, view: View
) -> None:
    """Two servers took a place at once. A node of another epoch has no say in it."""
    first, second, *_ = view.configuration.labels
    one, another = view.with_newcomer(first, NEW), view.with_newcomer(second, "07")
    other = replace(view, epoch=4, members=tuple(Member(9, "0e") for _ in range(5)))
    looks = [look_of(one, 2), look_of(another, 3), look_of(other, 4, votes=False)]

    current = guard._current(looks)  # noqa: SLF001

    assert current == one.with_newcomer(second, "07")


@pytest.mark.parametrize(("votes", "epoch"), [(False, 5), (True, 4)])
def test_later_view_of_our_own_gives_way_to_a_vote(
    guard: RestartGuard, view: View, *, votes: bool, epoch: int
) -> None:
    """A founding that reached no node is tried again, unless nodes vote."""
    guard.use(view)
    earlier = replace(view, epoch=4)

    current = guard._current([look_of(earlier, votes=votes)])  # noqa: SLF001

    assert current
    assert current.epoch == epoch


def test_next_epoch_is_above_all_that_nodes_have(
    guard: RestartGuard, view: View
) -> None:
    """Nodes that vote leave no deployment, but one of them may be ahead of it."""
    ahead = replace(view, epoch=8)

    founded = guard._found(view, [look_of(ahead), newcomer(view, 1)])  # noqa: SLF001

    assert (founded.epoch, founded.is_founded) == (9, True)
    assert founded.deployment == view.deployment


@pytest.mark.parametrize(
    ("kind", "member", "grown"),
    [
        ("planned", "0.0a", 1),  # it was planned, and has lost its memory since
        ("founded", "0.0a", 0),  # a founder that has not heard of the view yet
        ("planned", "1.0a", 1),  # it took the place, and has not heard of it yet
        ("founded", "1.0a", 1),
        ("planned", "0.0b", 1),
        ("founded", "0.0b", 1),
        ("planned", "1.0b", 2),
        ("founded", "1.0b", 2),
    ],
)
def test_server_without_a_view_takes_its_place(
    guard: RestartGuard, view: View, kind: str, member: str, grown: int
) -> None:
    """Unless the view has it already, and it only has not heard of it."""
    number, identity = member.split(".")
    members = (Member(int(number), identity), *view.members[1:])
    view = replace(view, is_founded=kind == "founded", members=members)

    found = guard._grown(view, [newcomer(view, 0, "0a")])  # noqa: SLF001

    assert found
    assert found.members[0] == (grown, "0a")


# -- whose votes -------------------------------------------------------------------


def test_voters_are_members_that_vote_in_the_view(
    guard: RestartGuard, view: View
) -> None:
    """Not those that wait, were replaced, or vote in another epoch."""
    looks = [
        look_of(view, 0),
        look_of(view, 1, votes=False),
        look_of(view, 2, view=replace(view, epoch=6)),
        look_of(view, 3, identity=NEW),
        newcomer(view, 4),
    ]

    assert guard._voting(view, looks) == 1  # noqa: SLF001


@pytest.mark.parametrize(
    ("case", "is_forgotten"),
    [
        (("ours", 4, "votes", "hopeful"), True),
        (("ours", 6, "waits", "hopeful"), True),
        (("ours", 4, "waits", "hopeless"), False),
        (("ours", 5, "votes", "hopeful"), False),  # it is a member
        (("others", 4, "waits", "hopeful"), True),
        (("others", 4, "waits", "hopeless"), True),
        (("others", 4, "votes", "hopeful"), True),
        (("others", 4, "votes", "hopeless"), False),  # they may go on with it
        (("others", 6, "waits", "hopeful"), False),  # a move that leads away
        (("others", 6, "votes", "hopeful"), False),
        (("strange", 4, "votes", "hopeful"), False),  # another deployment's
    ],
)
def test_nodes_that_were_left_behind_start_anew(
    guard: RestartGuard,
    nodes: FakeNodes,
    view: View,
    case: tuple[str, int, str, str],
    *,
    is_forgotten: bool,
) -> None:
    """They forget a view of an epoch that is over, and only this one.

    A case is: whose settings it has, its epoch, whether the node votes in it, and
    whether enough members vote in our view.
    """
    settings, epoch, does, outlook = case
    theirs = replace(view, epoch=epoch)
    if settings == "others":
        configuration = Configuration(view.configuration.labels, 90.0, is_guarded=True)
        theirs = replace(theirs, configuration=configuration)
    elif settings == "strange":
        theirs = replace(theirs, deployment="0123")
    left = look_of(theirs, 1, votes=does == "votes")
    looks = [look_of(view, 0), left, newcomer(view, 2)]

    found = guard._forget_lesser(  # noqa: SLF001
        view, looks, is_hopeless=outlook == "hopeless"
    )

    assert found is is_forgotten
    forgotten = [args[1] for args in args_of(nodes, "join")]
    assert forgotten == ([str(theirs)] if is_forgotten else [])


def test_look_waits_for_all_nodes(nodes: FakeNodes, guard: RestartGuard) -> None:
    """A majority is not enough: a node that is slow is not silent."""
    nodes.latency(0.04, 4)

    assert None not in guard.look()


def test_node_is_gone_that_was_silent_for_more_than_a_max_ttl(
    guard: RestartGuard, view: View, clock: FakeClock
) -> None:
    """Looks that are half of it apart are of one silence."""
    looks = [None, look_of(view, 1)]
    found = []
    for seconds in (0.0, 30.0, 30.0, 0.001):
        clock.advance(seconds)
        found.append(guard._gone(looks))  # noqa: SLF001

    assert found == [set(), set(), set(), {0}]


def test_node_is_confirmed_when_others_have_known_it_for_one_quarantine(
    site: Site,
) -> None:
    """To the millisecond, by their own clocks."""
    restart(site.nodes, 0)
    site.redlock.check()
    site.clock.advance(site.redlock.guard.quarantine_ms / 1000)

    site.redlock.check()

    assert voting(site.redlock) == [True] * 5


# -- whether asking again helps ----------------------------------------------------


def waiting(
    nodes: FakeNodes, redlock: Redlock, clock: FakeClock, *places: int
) -> Ballot:
    """Restart nodes, let their quarantine pass, and return how all of them vote."""
    restart(nodes, *places)
    redlock.check()
    clock.advance(OVER)
    nodes.asked.clear()
    return redlock.guard.votes(brings_back=False)


@pytest.mark.parametrize("has_joined", [False, True])
def test_server_that_is_replaced_meanwhile_delays_no_other(
    site: Site,
    *,
    has_joined: bool,
) -> None:
    """It has no identity yet, or one that the view does not have."""
    ballot = waiting(site.nodes, site.redlock, site.clock, 0, 1)

    def replace_it() -> None:
        restart(site.nodes, 0)
        if has_joined:
            site.rival.guard.look()

    with before(site.redlock.guard, scripts.COUNTERS, replace_it):
        assert site.redlock.guard.recover(ballot)

    assert voting(site.rival) == [False, True, True, True, True]


def test_one_node_that_votes_again_is_enough_to_ask_again(site: Site) -> None:
    """Of two that are to vote, the second is frozen after the first."""
    ballot = waiting(site.nodes, site.redlock, site.clock, 0, 1)
    ask = site.redlock.guard.ask

    def ask_and_freeze(script: scripts.Script, args: list[object]) -> object:
        request = ask(script, args)
        if script is scripts.SYNC:
            site.nodes.freeze(1)
        return request

    with mock.patch.object(site.redlock.guard, "ask", ask_and_freeze):
        assert site.redlock.guard.recover(ballot)


def test_node_that_did_not_hear_that_it_may_vote_is_no_reason_to_ask_again(
    site: Site,
) -> None:
    """It stops between its answer and the permission."""
    ballot = waiting(site.nodes, site.redlock, site.clock, 0)

    with before(site.redlock.guard, scripts.SYNC, lambda: site.nodes.freeze(0)):
        assert not site.redlock.guard.recover(ballot)


def test_client_without_a_view_that_finds_none_need_not_ask_again(
    clock: FakeClock,
) -> None:
    """It reaches a minority of new nodes, of which it founds nothing."""
    nodes = FakeNodes(3, clock=clock)
    nodes.partition(1, 2)
    client = new_client(nodes)
    ballot = client.guard.ask(scripts.COUNTERS, [client.guard.config]).ballot

    assert not client.guard.recover(ballot)


def test_view_that_all_have_is_not_noted_again(site: Site) -> None:
    """While too few confirm a node, the others are asked, and told nothing."""
    waiting(site.nodes, site.redlock, site.clock, 0)
    site.nodes.nodes[1].kill()
    site.nodes.nodes[2].kill()

    site.redlock.check()

    assert "join" in asked(site.nodes)
    assert "note" not in asked(site.nodes)


# -- beside what does not answer ---------------------------------------------------


def test_node_that_was_left_behind_joins_while_another_is_away(site: Site) -> None:
    """It is told to forget its view, and asked again; the other does not answer."""
    earlier = replace(view_of(site.redlock), epoch=0)
    configure(site.nodes, earlier, 0)
    site.nodes.freeze(4)

    site.redlock.check()

    assert numbers_of(site.redlock) == [1, 0, 0, 0, 0]


def test_founders_without_the_guard_wait_for_one_that_falls_silent(
    clock: FakeClock,
) -> None:
    """It does not tell which fences it knows, so it confirms no founder."""
    nodes = FakeNodes(3, clock=clock)
    client = new_client(nodes, restart_guard=False)
    ballot = client.guard.ask(scripts.COUNTERS, [client.guard.config]).ballot

    with before(client.guard, scripts.COUNTERS, lambda: nodes.freeze(2)):
        client.guard.recover(ballot)

    assert "sync" not in asked(nodes)


@pytest.fixture
def moved(redlock: Redlock) -> View:
    """Give the view to which a reconfiguration has led away from ours."""
    view = view_of(redlock)
    configuration = replace(view.configuration, max_ttl=90.0)
    return replace(view, configuration=configuration, epoch=view.epoch + 1)


def test_deployment_that_has_moved_on_is_left_alone(site: Site, moved: View) -> None:
    """A majority of members is gone from our epoch, so asking again does not help."""
    configure(site.nodes, moved, 0, 1, 2)
    restart(site.nodes, 3)
    ballot = site.redlock.guard.votes(brings_back=False)

    assert not site.redlock.guard.recover(ballot)

    assert "note" not in asked(site.nodes)


def test_move_that_was_aborted_keeps_no_node(site: Site, moved: View) -> None:
    """One node has heard of it; a majority votes as before, one has restarted."""
    configure(site.nodes, moved, 0)
    restart(site.nodes, 1)
    ballot = site.redlock.guard.votes(brings_back=False)

    assert site.redlock.guard.recover(ballot)

    assert numbers_of(site.redlock) == [1, 1, 0, 0, 0]


def test_coroutines_take_no_thread_for_a_node_that_stays_elsewhere(site: Site) -> None:
    """Only one of them at a time asks the nodes, which takes a thread."""
    view = view_of(site.redlock)
    settings = replace(view.configuration, max_ttl=90.0)
    theirs = replace(view, configuration=settings, deployment="another")
    configure(site.nodes, theirs, 0)

    async def acquire() -> None:
        for number in range(20):
            await site.redlock.aacquire(f"k{number}")

    with threads_started_here() as started:
        asyncio.run(acquire())

    assert len(started) < 3


def test_member_of_another_epoch_is_kept_where_nothing_else_is_left(site: Site) -> None:
    """Where too few vote, no view is known to be over."""
    later = replace(view_of(site.redlock), epoch=2)
    restart(site.nodes, 1, 2, 3, 4)
    site.redlock.guard.look()
    configure(site.nodes, later, 1)
    site.nodes.asked.clear()
    site.nodes.freeze(4)
    ballot = site.redlock.guard.votes(brings_back=False)

    site.redlock.guard.recover(ballot)

    assert {args[1] for args in args_of(site.nodes, "join")} == {""}


# -- while locks are granted -------------------------------------------------------


def test_lock_that_is_granted_recovers_the_node_that_did_not_vote(site: Site) -> None:
    """Its vote was not needed, but the next one may be."""
    restart(site.nodes, 0)

    site.redlock.acquire("k")

    assert asked(site.nodes)[:2] == ["acquire", "join"]


def test_late_vote_on_the_lock_before_is_seen(site: Site) -> None:
    """A majority was quicker than the node that lost its memory."""
    restart(site.nodes, 0)
    site.nodes.latency(0.01, 0)
    site.redlock.acquire("k")
    assert asked(site.nodes) == ["acquire"]
    site.clock.advance(0.02)

    site.redlock.acquire("l")

    assert asked(site.nodes)[:3] == ["acquire", "acquire", "join"]
