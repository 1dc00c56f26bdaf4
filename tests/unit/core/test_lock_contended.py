"""LockContended: the votes were split, and nobody has the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.lease import new_base
from celery_redlock.errors import LockContended
from tests.unit.core.support import args_of, asked, forget, holders, put

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeClock, FakeNodes


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
