"""The backlog of a key: the median of the nodes, and what happens without them."""

from __future__ import annotations

import pytest

from celery_redlock.errors import QuorumUnreachable
from celery_redlock.line.backlog import (
    Place,
    is_first,
    join_backlog,
    leave_backlog,
    note_run,
    number_in_backlog,
    place_of_newcomer,
)
from celery_redlock.locks.redlock import Redlock
from celery_redlock.testing import FakeNodes
from tests.unit.lock.support import Site, asked

NOW = 1_795_246_614_184_112  # µs since 1970


def join(redlock: Redlock, task_id: str, since: int = NOW) -> Place | None:
    """Let a call join the backlog of ``k``."""
    return join_backlog(redlock, "k", task_id, since=since)


def test_call_learns_its_place_and_how_long_runs_take(redlock: Redlock) -> None:
    """Where no run has ended lately, that is 0."""
    assert join(redlock, "a", NOW) == Place(0, 1, 0.0)
    note_run(redlock, "k", 0.25)

    assert join(redlock, "b", NOW + 1) == Place(1, 2, 0.25)
    assert place_of_newcomer(redlock, "k") == Place(2, 3, 0.25)

    leave_backlog(redlock, "k", "a")
    assert join(redlock, "b", NOW + 1) == Place(0, 1, 0.25)


def test_backlogs_of_keys_are_apart(redlock: Redlock) -> None:
    """A call with several keys leaves the backlogs of all; its run counts in all."""
    note_run(redlock, "k\nother", 2.0)
    for key in ("k", "other"):
        join_backlog(redlock, key, "both", since=NOW)

    leave_backlog(redlock, "k\nother", "both")

    assert place_of_newcomer(redlock, "k") == Place(0, 1, 2.0)
    assert place_of_newcomer(redlock, "other") == Place(0, 1, 2.0)
    assert place_of_newcomer(redlock, "third") == Place(0, 1, 0.0)


def test_median_of_the_nodes_counts(site: Site) -> None:
    """Neither a node that knows nothing nor one that knows too much decides."""
    for number in range(4):
        join(site.redlock, f"call-{number}", NOW + number)
    site.nodes.nodes[0].memory.flush()
    site.nodes.nodes[1].memory.flush()

    assert join(site.redlock, "last", NOW + 9) == Place(4, 5, 0.0)


def test_nodes_that_do_not_answer_are_left_out(site: Site) -> None:
    """One is enough. Without any there is no place."""
    join(site.redlock, "a")
    site.nodes.partition(0, 1, 2, 3)
    assert join(site.redlock, "b", NOW + 1) == Place(1, 2, 0.0)

    site.nodes.partition(4)
    assert join(site.redlock, "c", NOW + 2) is None
    assert place_of_newcomer(site.redlock, "k") is None


def test_key_of_another_type_means_no_place(site: Site) -> None:
    """The refusal does not fail."""
    for node in site.nodes.nodes:
        node.memory.redis.set(b"redlock:backlog:k", b"theirs")

    assert join(site.redlock, "a") is None


def test_leaving_and_noting_wait_for_no_reply(site: Site) -> None:
    """They cost a run no round trip."""
    before = site.clock.monotonic()
    site.nodes.partition(0, 1, 2, 3, 4)

    leave_backlog(site.redlock, "k", "a")
    note_run(site.redlock, "k", 1.0)

    assert site.clock.monotonic() == before
    assert asked(site.nodes)[-2:] == ["leave_backlog", "note_run"]


def test_backlog_needs_no_vote() -> None:
    """Nodes in quarantine keep it, too."""
    redlock = FakeNodes(3).redlock(ttl=10.0)

    assert join(redlock, "a") == Place(0, 1, 0.0)


# -- in order ------------------------------------------------------------------------


def number(redlock: Redlock, task_id: str, least: int) -> int | None:
    """Number a call that is about to be published."""
    return number_in_backlog(redlock, "k", task_id, least=least, margin=60)


def test_number_is_the_greatest_of_a_majority(site: Site) -> None:
    """Nodes that know fewer calls get it, too: clocks of publishers do not matter."""
    site.nodes.partition(3, 4)
    assert number(site.redlock, "a", 50) == 50
    site.nodes.heal()
    site.nodes.partition(0, 1)

    assert number(site.redlock, "b", 7) == 51
    site.nodes.heal()
    site.nodes.partition(0, 2)

    assert number(site.redlock, "c", 7) == 52


def test_place_in_order_is_the_last_that_a_node_names(site: Site) -> None:
    """One node of each majority knows each call that was published."""
    for number_, task_id in enumerate(("a", "b"), 50):
        number(site.redlock, task_id, number_)
    for node in site.nodes.nodes[1:]:
        node.memory.flush()
    site.nodes.partition(3, 4)

    place = join_backlog(site.redlock, "k", "b", since=51, in_order=True)

    assert place == Place(1, 2, 0.0, "a")
    assert join(site.redlock, "b", 51) == Place(0, 1, 0.0)
    assert not is_first(site.redlock, "k", "b")
    leave_backlog(site.redlock, "k", "a", in_order=True)
    assert is_first(site.redlock, "k", "b")


def test_minority_gives_no_place_in_order(site: Site) -> None:
    """It may not know the calls that are before."""
    site.nodes.partition(0, 1, 2)

    with pytest.raises(QuorumUnreachable, match="Only 2 of 5 nodes gave a vote on 'k'"):
        join_backlog(site.redlock, "k", "a", since=50, in_order=True)


def test_minority_gives_no_number(site: Site) -> None:
    """The next publisher might not hear of it. Nothing keeps a call from running."""
    site.nodes.partition(0, 1, 2)

    assert number(site.redlock, "a", 50) is None
    site.nodes.partition(3, 4)
    assert is_first(site.redlock, "k", "b")
