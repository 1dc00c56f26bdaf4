"""Every history of memberships within some bounds: with all rules, and without one.

``REDLOCK_MODEL=large`` searches larger bounds, for some minutes.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.conftest import with_long
from tests.model.checker import Report, explore
from tests.model.membership import Bounds, Membership, Phase, Rules, State
from tests.model.reconfiguration import Reconfiguration

LARGE_BOUNDS = os.environ.get("REDLOCK_MODEL") == "large"
pytestmark = pytest.mark.timeout(7200 if LARGE_BOUNDS else 600)

TWO = "two hold the lock"
OLD_VOTE = "an old vote counts after its replacement votes"
BOTH = (TWO, "a lock is granted by members that were replaced")

# Place 0 has two servers: the member, and another one that a name leads to.
THREE = Bounds(
    homes=(0, 0, 1, 2), members=(0, 1, 2), strangers=(1,), identities=(2, 1, 1)
)
FOUR = Bounds(
    homes=(0, 0, 1, 2, 3),
    members=(0, 1, 2, 3),
    strangers=(1,),
    identities=(2, 1, 1, 1),
)
# Server 1 replaces server 0, which goes on.
REPLACED = (
    "server 1 joins as 1 in view 0(1, 0, 0)",
    "server 2 notes 1 at place 0",
    "server 3 notes 1 at place 0",
    "server 2 confirms server 1",
    "server 3 confirms server 1",
    "server 1 votes",
)
# A majority of three lost its memory, and was led to the member that was displaced.
MAJORITY_LOST = (
    *REPLACED,
    "server 2 loses its memory; server 2 joins as 1 in view 0(0, 1, 0)",
    "server 3 loses its memory; server 3 joins as 1 in view 0(0, 0, 1)",
)


def search(
    bounds: Bounds, rules: Rules | None = None, history: tuple[str, ...] = ()
) -> Report[State]:
    """Search every history within these bounds that begins with this one."""
    kind = Reconfiguration if bounds.targets else Membership
    machine = kind(rules or Rules(), bounds)
    return explore(
        [machine.start(*history)],
        steps=machine.steps,
        violation=machine.violation,
        key=machine.key,
    )


# -- Replacement without one rule --------------------------------------


def test_names_instead_of_identities_let_a_second_holder_in() -> None:
    """One name that leads to two servers is enough, if only names are compared."""
    report = search(THREE, Rules(compare_identity=False))

    assert report.violation == TWO, report


def test_votes_of_two_views_let_a_second_holder_in() -> None:
    """A ballot that adds votes of an old view and a new one has no majority."""
    report = search(THREE, Rules(one_view=False))

    assert report.violation == TWO, report


def test_note_without_age_lets_a_newcomer_vote_too_early() -> None:
    """Locks that counted on the old member are alive when the newcomer votes."""
    report = search(THREE, Rules(note_age=False))

    assert report.violation == OLD_VOTE, report


@pytest.mark.parametrize("bounds", [THREE, FOUR], ids=["three", "four"])
def test_one_confirmation_is_not_enough(bounds: Bounds) -> None:
    """The others can be a majority, together with the old member."""
    report = search(bounds, Rules(enough_confirm=False))

    assert report.violation == OLD_VOTE, report


def test_late_note_brings_an_old_view_back() -> None:
    """A NOTE that is not compared can undo the note that was confirmed."""
    report = search(THREE, Rules(note_compares=False))

    assert report.violation == OLD_VOTE, report
    assert "server 2 notes 0 at place 0" in report.history, report


def test_members_of_two_views_confirm_what_they_do_not_share() -> None:
    """Another newcomer must not be admitted to a view with a displaced member."""
    bounds = replace(THREE, identities=(2, 1, 2))
    rules = Rules(confirm_same_view=False)

    report = search(bounds, rules, REPLACED)

    assert report.violation == OLD_VOTE, report
    assert "server 0 confirms server 3" in report.history, report


def test_newcomers_must_not_admit_each_other() -> None:
    """Two members without memory know nothing of the member that was displaced."""
    bounds = replace(THREE, identities=(2, 2, 2))
    one_view = (
        *MAJORITY_LOST,
        "server 0 notes 1 at place 1",
        "server 2 notes 1 at place 2",
        "server 3 notes 1 at place 1",
    )

    report = search(bounds, Rules(confirmers_vote=False), one_view)

    assert report.violation == OLD_VOTE, report


def test_join_that_arrives_twice_lets_a_second_holder_in() -> None:
    """An identity that outlives the memory of its server proves nothing."""
    report = search(THREE, Rules(identity_is_new=False))

    assert report.violation == TWO, report


def test_memory_that_comes_back_lets_a_second_holder_in() -> None:
    """A proof of identity that comes back with the memory proves nothing."""
    report = search(THREE, Rules(data_is_named=False))

    assert report.violation == TWO, report


def test_restore_by_a_newcomer_lets_a_second_holder_in() -> None:
    """A renewal must not count a server that is not confirmed yet."""
    report = search(replace(THREE, leases=(0, 0, 1)), Rules(renew_needs_vote=False))

    assert report.violation == TWO, report


# -- Renewals by servers that have restarted with their keys -------------

DISKS = {
    "three": replace(THREE, leases=(0, 0, 1), disks=True),
    "one": Bounds(
        homes=(0,),
        members=(0,),
        identities=(3,),
        leases=(0, 0, 1),
        foundings=2,
        disks=True,
    ),
}


@pytest.mark.parametrize("name", with_long(DISKS, "three"))
def test_server_that_kept_its_keys_may_count_for_their_renewal(name: str) -> None:
    """No other client was granted them since: the server has not voted since."""
    report = search(DISKS[name])

    assert not report.violation, report


def test_copy_of_a_server_must_not_count_for_a_renewal() -> None:
    """It has the keys of a server that lives on, and grants them to other clients."""
    report = search(DISKS["three"], Rules(data_is_its_own=False))

    assert report.violation == TWO, report


# -- Founding without one rule -----------------------------------------

FORMING = Bounds(
    homes=(0, 0, 1, 2),
    members=(),
    strangers=(0, 1, 2, 3),
    identities=(2, 1, 1),
    foundings=2,
)
LOST = Bounds(homes=(0, 1, 2), members=(0, 1, 2), identities=(1, 2, 2), foundings=1)
ALONE = Bounds(homes=(0,), members=(0,), identities=(3,), foundings=2)
INIT = Bounds(
    homes=(0, 1, 2), members=(), strangers=(0, 1, 2), identities=(2, 1, 1), inits=1
)
# The lock of ballot 0 lives, and one of the two members that granted it forgot.
FORGOTTEN = (
    "server 1 votes for ballot 0",
    "server 2 votes for ballot 0, which is granted",
    "server 1 loses its memory; server 1 gets identity 1",
)


def test_founding_without_a_wait_forgets_living_locks() -> None:
    """Two of three that lost their memory may have granted a lock that lives."""
    founded = (
        *FORGOTTEN,
        "server 2 loses its memory; server 2 gets identity 1",
        "epoch 1 is founded by (0, 1, 1)",
    )

    report = search(LOST, Rules(founders_wait=False), founded)

    assert report.violation == TWO, report


def test_start_of_a_process_that_has_voted_proves_nothing() -> None:
    """A server whose keys were deleted looks like one that has just been set up."""
    report = search(ALONE, Rules(vote_is_marked=False))

    assert report.violation == TWO, report


def test_single_node_must_wait_itself() -> None:
    """With one member there is no other one that knows how long ago it was."""
    report = search(ALONE, Rules(own_wait=False))

    assert report.violation == TWO, report


def test_founding_needs_all_places() -> None:
    """With r others, two wrong names of four are enough for two majorities."""
    bounds = Bounds(
        homes=(0, 0, 1, 1, 2, 3),
        members=(0, 1, 2, 3),
        strangers=(1, 3),
        identities=(2, 2, 1, 1),
        foundings=1,
    )
    founded = (
        "server 1 joins as 1 in view 0(1, 0, 0, 0)",
        "server 3 joins as 1 in view 0(0, 1, 0, 0)",
        "epoch 1 is founded by (1, 1, 0, 0)",
        "server 1 moves to epoch 1",
        "server 3 moves to epoch 1",
        "server 4 moves to epoch 1",
        "server 3 confirms server 1",
        "server 4 confirms server 1",
        "server 1 votes",
        "server 1 confirms server 3",
        "server 4 confirms server 3",
        "server 3 votes",
        "server 1 votes for ballot 0",
        "server 3 votes for ballot 0",
    )

    report = search(bounds, Rules(founders_all=False), founded)

    assert report.violation == TWO, report


def test_init_while_locks_live_lets_a_second_holder_in() -> None:
    """An operator who runs init promises that no lock of an earlier time lives."""
    bounds = replace(LOST, identities=(2, 2, 2), foundings=0, inits=1)
    restarted = (
        *FORGOTTEN,
        "server 2 loses its memory; server 2 gets identity 1",
        "server 0 loses its memory; server 0 gets identity 1",
    )

    report = search(bounds, Rules(init_promise=False), restarted)

    assert report.violation == TWO, report


# -- Reconfiguration without one rule ----------------------------------

# One new member for three; three and four new members for one; one member of three.
THREE_TO_ONE = Bounds(
    homes=(0, 1, 2, 3),
    members=(0, 1, 2),
    strangers=(3,),
    identities=(2, 1, 1, 2),
    targets=((3,),),
)
FOUR_TO_ONE = Bounds(
    homes=(0, 1, 2, 3, 4),
    members=(0, 1, 2, 3),
    strangers=(4,),
    identities=(2, 1, 1, 1, 1),
    targets=((4,),),
)
ONE_TO_THREE = Bounds(
    homes=(0, 1, 2, 3),
    members=(0,),
    strangers=(1, 2, 3),
    identities=(1, 2, 1, 1),
    targets=((1, 2, 3),),
)
ONE_TO_FOUR = Bounds(
    homes=(0, 1, 2, 3, 4),
    members=(0,),
    strangers=(1, 2, 3, 4),
    identities=(1, 2, 1, 1, 1),
    targets=((1, 2, 3, 4),),
    aborts=True,
)
ONE_OF_THREE = Bounds(
    homes=(0, 1, 2, 3),
    members=(0, 1, 2),
    strangers=(3,),
    identities=(1, 1, 1, 1),
    targets=((1, 2, 3),),
    aborts=True,
)
TWO_PLANS = Bounds(
    homes=(0, 1, 2),
    members=(0, 1, 2),
    identities=(1, 1, 1),
    targets=((0,), (1,)),
    aborts=True,
)
ONE_GONE = Bounds(
    homes=(0, 1, 2, 3),
    members=(0, 1, 2),
    strangers=(3,),
    identities=(1, 2, 1, 1),
    targets=((3,),),
    gone=(0,),
)


def test_open_without_identity_lifts_the_wait_of_an_empty_node() -> None:
    """An operator runs reconfigure again; a new member lost its memory meanwhile."""
    report = search(ONE_TO_THREE, Rules(open_compares=False))

    assert report.violation == TWO, report
    lost = next(i for i, what in enumerate(report.history) if "loses" in what)
    assert "server 1 opens for epoch 1" in report.history[lost:], report


def test_abort_marks_a_majority_of_the_new_members() -> None:
    """Two marks of four are not enough: the other two admit a newcomer."""
    two_open = (
        "epoch 1 (-1, 0, 0, 0, 0) is planned after 0(0, -1, -1, -1, -1)",
        "server 0 is closed for epoch 1",
        "server 0 says that it is closed for epoch 1",
        "server 2 is prepared for epoch 1",
        "server 3 is prepared for epoch 1",
        "server 2 opens for epoch 1",
        "server 3 opens for epoch 1",
    )

    report = search(ONE_TO_FOUR, Rules(abort_majority=False), two_open)

    assert report.violation in BOTH, report


def test_member_that_is_not_gone_lets_a_second_holder_in() -> None:
    """An operator who gives a server as gone promises that it is switched off."""
    report = search(ONE_GONE, Rules(gone_is_gone=False))

    assert report.violation in BOTH, report


# -- The limit of founding ----------------------------------------------

LEFT = Bounds(
    homes=(0, 1, 2, 3),
    members=(0, 1, 2),
    strangers=(3,),
    identities=(2, 2, 1, 1),
    foundings=1,
    targets=((3,),),
)
RECONFIGURED = (
    "epoch 1 (-1, -1, -1, 0) is planned after 0(0, 0, 0, -1)",
    "server 0 is closed for epoch 1",
    "server 1 is closed for epoch 1",
    "server 0 says that it is closed for epoch 1",
    "server 1 says that it is closed for epoch 1",
    "server 3 is prepared for epoch 1",
    "server 3 opens for epoch 1",
)


def test_closed_members_that_all_forget_can_be_founded_again() -> None:
    """A limit: if no closed member remembers, the old list is a new deployment.

    Operators shut down the nodes that they remove.
    """
    report = search(LEFT, history=RECONFIGURED)

    assert report.violation == TWO, report
    assert sum("loses its memory" in what for what in report.history) == 2, report


def test_closed_member_that_remembers_prevents_a_founding() -> None:
    """Founding needs all members, and a closed one does not take part."""
    report = search(replace(LEFT, identities=(2, 1, 1, 2)), history=RECONFIGURED)

    assert not report.violation, report


# -- With all rules ----------------------------------------------------

SMALL: dict[str, tuple[Bounds, tuple[str, ...]]] = {
    "three, of which one is replaced": (replace(THREE, leases=(0, 0, 1)), ()),
    "four, of which one is replaced": (FOUR, ()),
    "three, of which two are replaced": (
        replace(THREE, identities=(2, 2, 1)),
        REPLACED,
    ),
    "a majority lost its memory": (replace(THREE, identities=(2, 2, 2)), MAJORITY_LOST),
    "a majority lost its memory, and is founded": (LOST, FORGOTTEN),
    "one member lost its memory, and is founded": (ALONE, ()),
    "init": (INIT, ()),
    "from three to one": (THREE_TO_ONE, ()),
    "from three to one, with renewals": (
        replace(THREE_TO_ONE, identities=(1, 1, 1, 1), leases=(0, 0, 1)),
        (),
    ),
    "from four to one": (replace(FOUR_TO_ONE, identities=(1, 1, 1, 1, 1)), ()),
    "from one to three": (replace(ONE_TO_THREE, aborts=True), ()),
    "from one to four": (replace(ONE_TO_FOUR, identities=(1, 1, 1, 1, 1)), ()),
    "one of three is exchanged": (ONE_OF_THREE, ()),
    "one of three is gone": (ONE_GONE, ()),
    "two operators": (TWO_PLANS, ()),
}
LARGE: dict[str, tuple[Bounds, tuple[str, ...]]] = {
    "three, of which two are replaced": (replace(THREE, identities=(2, 2, 1)), ()),
    "three, with two candidates": (
        replace(THREE, homes=(0, 0, 0, 1, 2), strangers=(1, 2), identities=(3, 1, 1)),
        (),
    ),
    "four, of which one is replaced": (replace(FOUR, leases=(0, 0, 1)), ()),
    "a majority lost its memory, with renewals": (
        replace(THREE, identities=(2, 2, 2), leases=(0, 0, 1)),
        MAJORITY_LOST,
    ),
    "the displaced member founds": (
        replace(THREE, identities=(2, 2, 2), foundings=1),
        (*MAJORITY_LOST, "epoch 1 is founded by (0, 1, 1)"),
    ),
    "its replacement founds": (
        replace(THREE, identities=(2, 2, 2), foundings=1),
        (*MAJORITY_LOST, "epoch 1 is founded by (1, 1, 1)"),
    ),
    "forming": (FORMING, ()),
    "from three to one": (replace(THREE_TO_ONE, leases=(0, 0, 1)), ()),
    "from four to one": (FOUR_TO_ONE, ()),
    "from one to four": (ONE_TO_FOUR, ()),
    "one of three is exchanged": (
        replace(ONE_OF_THREE, identities=(1, 2, 1, 1)),
        (),
    ),
    "two operators": (
        replace(
            TWO_PLANS,
            homes=(0, 1, 2, 3),
            strangers=(3,),
            identities=(1, 1, 1, 1),
            targets=((3,), (0, 3)),
        ),
        (),
    ),
}
BOUNDS = LARGE if LARGE_BOUNDS else SMALL
MOVES = [
    *("from three to one", "from one to three", "from one to four"),
    *("one of three is exchanged", "one of three is gone", "two operators"),
]


def without_abort(machine: Membership, state: State) -> str:
    """Return that a majority votes in the epoch that an opened plan has left, or ""."""
    for plan in state.plans:
        if not plan.opened or plan.marked.bit_count() >= machine.quorum(plan.ids):
            continue
        voting = {
            home
            for home, server in zip(machine.homes, state.servers, strict=True)
            if (server.phase, server.epoch) == (Phase.VOTING, plan.source)
            and server.ids[home] == server.ident
        }
        if len(voting) >= machine.quorum(plan.source_ids):
            return "a majority votes in the epoch that was left"
    return ""


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize(
    "name",
    with_long(MOVES, *MOVES[:2], *MOVES[3:], exhaustive=["two operators"]),
)
def test_majority_comes_back_only_by_an_abort(name: str, *, marks: bool) -> None:
    """So clients may let a member forget a plan in which it opened.

    They do if a majority votes in the epoch before. It shows that the plan is aborted.
    Without the rule that an abort marks first, that would be no proof.
    """
    bounds, history = SMALL[name]
    rules = Rules(abort_marks=marks)
    machine = Reconfiguration(rules, bounds)

    report = explore(
        [machine.start(*history)],
        steps=machine.steps,
        violation=lambda state: without_abort(machine, state),
        key=machine.key,
    )

    assert bool(report.violation) == (bounds.aborts and not marks), report


@pytest.mark.parametrize(
    "name",
    with_long(
        BOUNDS,
        *("a majority lost its memory", "a majority lost its memory, and is founded"),
        *("two operators", "from three to one"),
    ),
)
def test_rules_hold(name: str) -> None:
    """In no history do two hold the lock, or does an old vote or member count."""
    bounds, history = BOUNDS[name]

    report = search(bounds, history=history)

    assert not report.violation, report
    assert report.states > 50, "the search has hardly started"
