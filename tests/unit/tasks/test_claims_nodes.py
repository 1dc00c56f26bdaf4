"""What a claim asks of the nodes, and what becomes of the call if they disagree."""

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
    """The claim is asked for; that it shall last is only told."""
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
    """One node of three may be away, before and after."""
    task = unique_job(app)
    nodes.partition(*cut)

    first, second = task.delay(0), task.delay(0)

    assert second.id == first.id
    assert messages(app) == [first.id]


def test_call_is_published_if_the_nodes_do_not_answer(
    app: Celery, nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not for a claim to stop a job: it is said, and nothing is left behind."""
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
    """Let each node have the claim of another job, for so long."""
    for number, node in enumerate(nodes.nodes):
        other = f"other-{number}\n0\njob\nother-{number}\nhost\n1\n0\nqueued".encode()
        node.memory.redis.set(b"redlock:claim:k:0", other, px=int(seconds * 1000))


def test_split_claims_are_tried_again(app: Celery, nodes: FakeNodes) -> None:
    """Of several who publish at once one has the claim in the end."""
    task = unique_job(app)
    split_claims(nodes, 0.005)

    first = task.delay(0)

    assert list(claims(nodes)) == [first.id]
    assert messages(app) == [first.id]


def test_split_claims_that_stay_split_stop_nobody(
    app: Celery, nodes: FakeNodes
) -> None:
    """After a few tries it is published without."""
    task = unique_job(app)
    split_claims(nodes, 60.0)

    first = task.delay(0)

    assert messages(app) == [first.id]
    assert len(args_of(nodes, CLAIM.name)) == 5
