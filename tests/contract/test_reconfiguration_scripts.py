"""Reconfiguration, reply by reply: CLOSE, OPEN, ABORT, REOPEN.

A node leaves its view for a planned one. It votes in neither until it is opened, or
until the reconfiguration is aborted. ``tests/model/reconfiguration.py`` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_redlock.members.view import CLOSED as PREFIX
from celery_redlock.members.view import JOINED
from celery_redlock.scripts import (
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    UNSYNCED,
)
from tests.contract.subjects import (
    CLOSED,
    CONFIG,
    EXACT,
    ME,
    NEW,
    OTHER,
    PATIENCE,
    STRANGE,
    STRIPE,
    UNGUARDED,
    Subject,
    view,
)
from tests.contract.test_membership_scripts import is_unchanged

ANOTHER = view(epoch="2.cc", kind="planned")  # the plan of a second operator
GROWN = view(b="1.b2")
ABORTED = [MISCONFIGURED, b"aborted"]


def close_for_good(subject: Subject) -> None:
    """Close a node, and let its old locks end."""
    subject.close()
    subject.end_quarantine()


# -- CLOSE -------------------------------------------------------------------------


def test_close_ends_grants_and_renewals_but_no_locks(subject: Subject) -> None:
    """Clients of the old view are refused; they may still release."""
    subject.admit()
    subject.acquire(config=CONFIG)
    before = subject.now_us // 1000

    assert subject.close(20_000) == [QUARANTINED, 20_000]

    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == subject.text(CLOSED)
    assert meta[b"view"] == subject.text(CONFIG)
    assert b"votes" not in meta
    until = int(meta[b"quarantine_until"]) - 20_000
    assert before <= until <= subject.now_us // 1000
    refused = [MISCONFIGURED, subject.text(CLOSED)]
    assert subject.acquire(OTHER, config=CONFIG) == refused
    assert subject.extend(config=CONFIG) == refused
    assert subject.restore(config=CONFIG) == refused
    assert subject.release() == 1


def test_close_again_returns_the_time_left(subject: Subject) -> None:
    """A repetition does not start the wait anew, and reports its end."""
    subject.admit()
    subject.close(20_000)

    status, left = is_unchanged(subject, lambda: subject.close(60_000))
    assert (status, 0 < left <= 20_000) == (QUARANTINED, True)

    subject.end_quarantine()
    assert is_unchanged(subject, lambda: subject.close(60_000)) == [FREE]


def test_close_prepares_a_new_server_without_a_wait(subject: Subject) -> None:
    """It has granted nothing, so there is nothing to wait for."""
    subject.join()

    assert subject.close(20_000) == [FREE]

    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == subject.text(CLOSED)
    assert b"view" not in meta
    assert b"quarantine_until" not in meta
    assert is_unchanged(subject, subject.close) == [FREE]


def test_close_of_a_new_server_that_is_not_planned_is_refused(subject: Subject) -> None:
    """The server at this name was replaced since the plan was made."""
    subject.join()

    for old in (CONFIG, JOINED + "?"):
        reply = is_unchanged(
            subject,
            partial(subject.close, old=old, new=view("0.x", epoch="2.bb")),
        )
        assert reply == [MISCONFIGURED, JOINED.encode()]


def test_close_needs_no_member_that_stays(subject: Subject) -> None:
    """A member that the plan leaves out is closed like all."""
    subject.admit()

    assert subject.close(new=view("0.another", epoch="2.bb", kind="planned")) == [
        QUARANTINED,
        61_000,
    ]


@pytest.mark.parametrize(
    "present", [GROWN, STRANGE, view(epoch="2.aa"), NEW, view(me=f"1.{ME}")]
)
def test_close_acts_only_on_the_view_that_is_left(
    subject: Subject, present: str
) -> None:
    """The members of the plan were read from that view; it has grown, or is another."""
    subject.admit(present)

    reply = is_unchanged(subject, subject.close)

    if present == NEW:
        assert reply == [GRANTED, 0]  # it has moved on already
    else:
        assert reply == [MISCONFIGURED, subject.text(present)]


def test_close_of_a_member_that_does_not_vote_is_refused(subject: Subject) -> None:
    """It may not know of locks that the majority granted. It votes first."""
    subject.enter(quarantine_ms=20_000)
    refused = [UNSYNCED, subject.identity.encode()]

    assert is_unchanged(subject, subject.close) == refused
    subject.end_quarantine()
    assert is_unchanged(subject, subject.close) == refused


def test_close_for_a_second_plan_is_refused(subject: Subject) -> None:
    """One operator counts on it. The reply names the plan that goes on."""
    subject.admit()
    close_for_good(subject)

    reply = is_unchanged(subject, partial(subject.close, new=ANOTHER))

    assert reply == [MISCONFIGURED, subject.text(CLOSED)]


@pytest.mark.parametrize("ours", [CONFIG, UNGUARDED])
@pytest.mark.parametrize("guard", ["on", "off"])
def test_close_of_a_node_that_restarted_without_the_guard(
    subject: Subject, ours: str, guard: str
) -> None:
    """A node without the guard has its identity for more than one process.

    The plan turns the guard on, and must find the identity that it was made with.
    """
    new = view(epoch="2.bb", kind="planned", guard=guard)
    subject.admit(ours)
    subject.restart(keep_memory=True)
    if ours == CONFIG:
        assert is_unchanged(subject, partial(subject.close, new=new)) == [UNSYNCED, b""]
        return

    assert subject.close(old=UNGUARDED, new=new)[0] == QUARANTINED
    subject.end_quarantine()

    assert subject.close(old=UNGUARDED, new=new) == [FREE]
    assert subject.open(new=new) == [GRANTED, 0]
    assert subject.acquire(config=new)[0] == GRANTED


# -- OPEN --------------------------------------------------------------------------


@pytest.mark.parametrize("was_member", [False, True])
def test_open_lets_a_closed_node_vote_above_these_fences(
    subject: Subject, *, was_member: bool
) -> None:
    """The wait is over, the counters are the greatest of all, the node votes."""
    if was_member:
        subject.admit()
    else:
        subject.join()
    close_for_good(subject)
    subject.hset(subject.meta, STRIPE, 10)
    subject.hset(subject.meta, "8", 99)

    assert subject.open(STRIPE, 70, "8", 70, b"floor", EXACT) == [GRANTED, 0]

    assert subject.counters_of_all() == {
        STRIPE.encode(): b"70",
        b"8": b"99",
        b"floor": str(EXACT).encode(),
    }
    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == subject.text(NEW)
    assert meta[b"votes"] == b"1"
    assert not {b"view", b"quarantine_until"} & set(meta)
    assert {b"known:a:1/0", b"known:b:1/0", b"known:c:1/0"} < set(meta)
    assert subject.acquire(config=NEW) == [GRANTED, EXACT]


def test_open_of_a_node_that_still_waits_is_refused(subject: Subject) -> None:
    """It was closed a moment ago."""
    subject.admit()
    subject.close(20_000)

    status, left = is_unchanged(subject, lambda: subject.open(STRIPE, 70))

    assert (status, 20_000 - PATIENCE < left <= 20_000) == (QUARANTINED, True)


@pytest.mark.parametrize("state", ["joined", "joining", "voting"])
def test_open_of_a_node_that_is_not_closed_is_refused(
    subject: Subject, state: str
) -> None:
    """It has lost its memory since, or was never closed."""
    subject.join()
    if state != "joined":
        subject.note()
    if state == "voting":
        subject.end_quarantine()
        subject.sync()
    present = subject.hgetall(subject.meta)[b"config"]

    assert is_unchanged(subject, lambda: subject.open(STRIPE, 70)) == [
        MISCONFIGURED,
        present,
    ]


def test_open_for_another_plan_is_refused(subject: Subject) -> None:
    """The members of one plan never open for another one."""
    subject.admit()
    close_for_good(subject)

    assert is_unchanged(subject, lambda: subject.open(new=ANOTHER)) == [
        MISCONFIGURED,
        subject.text(CLOSED),
    ]


def test_open_of_a_server_that_is_not_planned_is_refused(subject: Subject) -> None:
    """A member that is left out stays closed."""
    left_out = view("0.another", epoch="2.bb", kind="planned")
    subject.admit()
    subject.close(new=left_out)
    subject.end_quarantine()

    assert is_unchanged(subject, lambda: subject.open(new=left_out)) == [
        MISCONFIGURED,
        subject.text(PREFIX + left_out),
    ]


def test_open_twice_changes_nothing(subject: Subject) -> None:
    """Also when the second message comes late."""
    subject.admit()
    close_for_good(subject)
    subject.open(STRIPE, 70)

    assert is_unchanged(subject, lambda: subject.open(STRIPE, 80)) == [GRANTED, 0]


def test_open_is_no_way_around_a_later_wait(subject: Subject) -> None:
    """A node that was opened, and has lost its memory since, waits as always."""
    subject.admit()
    close_for_good(subject)
    subject.open()
    subject.flush()
    subject.enter(view(me=f"1.{ME}", epoch="2.bb", kind="planned"))

    assert subject.open()[0] == MISCONFIGURED
    assert subject.acquire(config=NEW)[0] == MISCONFIGURED


def test_opened_node_learns_of_newcomers(subject: Subject) -> None:
    """The planned view grows like every other one."""
    subject.admit()
    close_for_good(subject)
    subject.open()
    grown = view(b="1.b2", epoch="2.bb", kind="planned")

    assert subject.note(grown) == [GRANTED, 0]
    assert subject.acquire(config=grown)[0] == GRANTED


# -- ABORT -------------------------------------------------------------------------


STATES: dict[str, Callable[[Subject], Any]] = {
    "joined": lambda subject: subject.join(),
    "prepared": lambda subject: (subject.join(), subject.close()),
    "voting": lambda subject: subject.admit(),
    "closed": lambda subject: (subject.admit(), subject.close()),
    "joining": lambda subject: subject.enter(),
}


@pytest.mark.parametrize("state", STATES)
def test_abort_marks_a_planned_member(subject: Subject, state: str) -> None:
    """The node is never closed or opened for this plan after that. Nothing else."""
    STATES[state](subject)
    before = subject.hgetall(subject.meta)

    assert subject.abort() == [GRANTED, 0]

    meta = subject.hgetall(subject.meta)
    assert meta.pop(b"aborted") == subject.text(CLOSED) + b"\n"
    assert meta == before
    assert is_unchanged(subject, subject.close) == ABORTED
    assert is_unchanged(subject, subject.open)[0] == MISCONFIGURED
    assert is_unchanged(subject, subject.abort) == [GRANTED, 0]


def test_abort_keeps_the_marks_of_other_plans(subject: Subject) -> None:
    """Each is for good."""
    subject.admit()
    subject.abort()
    subject.abort(ANOTHER)

    for new in (NEW, ANOTHER):
        assert subject.close(new=new) == ABORTED


def test_abort_of_a_node_that_has_opened_is_refused(subject: Subject) -> None:
    """A majority that is marked was never opened, so one that was says no."""
    subject.admit()
    close_for_good(subject)
    subject.open()
    opened = [MISCONFIGURED, subject.text(NEW)]
    assert is_unchanged(subject, subject.abort) == opened

    grown = view(b="1.b2", epoch="2.bb", kind="planned")
    subject.note(grown)
    assert is_unchanged(subject, subject.abort) == [MISCONFIGURED, subject.text(grown)]


def test_abort_of_a_node_that_has_gone_on_is_refused(subject: Subject) -> None:
    """It has opened, and is now closed for the next plan, which can be aborted."""
    subject.admit()
    close_for_good(subject)
    subject.open()
    third = view(epoch="3.cc", kind="planned")
    subject.close(old=NEW, new=third)

    closed = subject.hgetall(subject.meta)[b"config"]
    assert is_unchanged(subject, subject.abort) == [MISCONFIGURED, closed]
    assert subject.abort(third) == [GRANTED, 0]


def test_abort_of_a_server_that_is_not_planned_is_refused(subject: Subject) -> None:
    """Its mark says nothing about the planned view."""
    subject.admit()

    for new in (view("0.another", epoch="2.bb"), "garbage"):
        assert is_unchanged(subject, partial(subject.abort, new)) == [
            MISCONFIGURED,
            subject.text(CONFIG),
        ]


def test_loss_of_memory_ends_a_mark_and_the_place_in_the_plan(subject: Subject) -> None:
    """The mark is gone, and so is the identity with which the plan could open."""
    subject.join()
    plan = subject.text(NEW).decode()
    subject.abort()
    subject.delete(subject.meta)
    subject.join()

    assert subject.close(new=plan) == [MISCONFIGURED, JOINED.encode()]
    assert subject.open(new=plan) == [MISCONFIGURED, JOINED.encode()]


# -- REOPEN ------------------------------------------------------------------------


def test_reopen_lets_a_closed_member_vote_in_its_old_view(subject: Subject) -> None:
    """At once: it has forgotten nothing. It is never closed for that plan again."""
    subject.admit()
    subject.acquire(config=CONFIG)
    before = subject.hgetall(subject.meta)
    subject.close(20_000)

    assert subject.reopen() == [GRANTED, 0]

    meta = subject.hgetall(subject.meta)
    assert meta.pop(b"aborted") == subject.text(CLOSED) + b"\n"
    assert meta == before
    assert subject.extend(config=CONFIG) == [GRANTED, 0]
    assert is_unchanged(subject, subject.close) == ABORTED
    assert is_unchanged(subject, subject.open)[0] == MISCONFIGURED
    assert subject.close(new=ANOTHER)[0] == QUARANTINED


def test_reopen_raises_the_counters_that_it_is_given(subject: Subject) -> None:
    """As OPEN does: members that forgot may have granted greater fences."""
    subject.admit()
    subject.close()

    assert subject.reopen(pairs=("floor", 5 * 10**15)) == [GRANTED, 0]

    assert subject.acquire(config=CONFIG) == [GRANTED, 5 * 10**15 + 1]


@pytest.mark.parametrize("script", ["open", "reopen"])
def test_counters_are_raised_above_the_time_of_the_node(
    subject: Subject, script: str
) -> None:
    """An operator's clock may be wrong, and then its floor is below earlier fences."""
    subject.admit()
    pairs = ("floor", 5, "time", 7 * 10**6)
    before = subject.now_us

    if script == "reopen":
        subject.close()
        assert subject.reopen(pairs=pairs) == [GRANTED, 0]
        granted = subject.acquire(config=CONFIG)
    else:
        close_for_good(subject)
        assert subject.open(*pairs) == [GRANTED, 0]
        granted = subject.acquire(config=NEW)

    assert granted[1] > before + 7 * 10**6
    assert b"time" not in subject.hgetall(subject.meta)


@pytest.mark.parametrize("state", ["joined", "prepared", "voting", "joining"])
def test_reopen_of_a_node_that_was_not_closed_is_free(
    subject: Subject, state: str
) -> None:
    """There is no view that it could vote in."""
    STATES[state](subject)

    assert is_unchanged(subject, subject.reopen) == [FREE]


def test_reopen_for_another_plan_is_free(subject: Subject) -> None:
    """The plan that was made first goes on."""
    subject.admit()
    subject.close()

    assert is_unchanged(subject, partial(subject.reopen, ANOTHER)) == [FREE]


def test_reopen_after_open_is_free(subject: Subject) -> None:
    """A message that comes late does not bring the old view back."""
    subject.admit()
    close_for_good(subject)
    subject.open()

    assert is_unchanged(subject, subject.reopen) == [FREE]


def test_reopened_member_that_restarted_meanwhile_does_not_vote(
    subject: Subject,
) -> None:
    """Also if the planned view is one without the guard."""
    unguarded = view(epoch="2.bb", kind="planned", guard="off")
    subject.admit()
    subject.close(new=unguarded)
    subject.restart(keep_memory=True)

    subject.reopen(unguarded)

    assert subject.acquire(config=CONFIG) == [UNSYNCED, b""]


def test_prepared_server_of_an_aborted_plan_is_free_for_the_next(
    subject: Subject,
) -> None:
    """It was never a member. A plan that was not aborted keeps it."""
    subject.join()
    subject.close()
    assert subject.close(new=ANOTHER) == [MISCONFIGURED, subject.text(CLOSED)]
    subject.abort()

    assert subject.close(new=ANOTHER) == [FREE]
    assert subject.open(new=ANOTHER) == [GRANTED, 0]


def test_closed_member_of_an_aborted_plan_is_not_free(subject: Subject) -> None:
    """It goes back to its old view first: REOPEN."""
    subject.admit()
    close_for_good(subject)
    subject.abort()

    assert is_unchanged(subject, partial(subject.close, new=ANOTHER)) == [
        MISCONFIGURED,
        subject.text(CLOSED),
    ]
    assert subject.reopen() == [GRANTED, 0]
