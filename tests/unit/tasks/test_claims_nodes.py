"""Claims on the nodes: their requests, outages and split claims."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.scripts import CLAIM
from tests.unit.core.support import args_of, asked
from tests.unit.tasks.support import claims, messages, unique_job

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.testing import FakeNodes


def test_publishing_waits_for_one_round_trip(app: Celery, nodes: FakeNodes) -> None:
    """The publisher waits for the replies to ``claim``, not to ``keep_claim``."""
    task = unique_job(app)
    nodes.latency(0.01)
    began = nodes.clock.monotonic()

    task.delay(0)

    assert asked(nodes) == ["claim", "keep_claim"]
    assert nodes.clock.monotonic() - began == pytest.approx(0.01)


@pytest.mark.parametrize("cut", [[0], [1], [2]])
def test_claim_needs_a_majority_only(
    app: Celery, nodes: FakeNodes, cut: list[int]
) -> None:
    """With one of three nodes cut off, the second call is still a duplicate."""
    task = unique_job(app)
    nodes.partition(*cut)

    first, second = task.delay(0), task.delay(0)

    assert second.id == first.id
    assert messages(app) == [first.id]


def test_call_is_published_if_the_nodes_do_not_answer(
    app: Celery, nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing claim stops no job: a warning is logged, and no claim is left."""
    task = unique_job(app)
    nodes.partition(0, 1)

    with caplog.at_level(logging.WARNING):
        first, second = task.delay(0), task.delay(0)

    assert messages(app) == [first.id, second.id]
    assert (first.conflict, second.conflict) == (None, None)
    assert "is published without a claim" in caplog.text
    nodes.heal()
    assert claims(nodes) == {}


def split_claims(nodes: FakeNodes, seconds: float) -> None:
    """Store the claim of a different job on each node, for so many seconds."""
    for number, node in enumerate(nodes.nodes):
        other = f"other-{number}\n0\njob\nother-{number}\nhost\n1\n0\nqueued".encode()
        node.memory.redis.set(b"redlock:claim:k:0", other, px=int(seconds * 1000))


def test_split_claims_are_tried_again(app: Celery, nodes: FakeNodes) -> None:
    """Of several clients that publish at once, one gets the claim in the end."""
    task = unique_job(app)
    split_claims(nodes, 0.005)

    first = task.delay(0)

    assert list(claims(nodes)) == [first.id]
    assert messages(app) == [first.id]


def test_split_claims_that_stay_split_stop_no_call(
    app: Celery, nodes: FakeNodes
) -> None:
    """After a few tries the call is published without a claim."""
    task = unique_job(app)
    split_claims(nodes, 60.0)

    first = task.delay(0)

    assert messages(app) == [first.id]
    assert len(args_of(nodes, CLAIM.name)) == 5
