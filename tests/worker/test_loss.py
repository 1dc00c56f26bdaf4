"""Each answer of ``on_lock_lost``, for a run that loses its lock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import states

from celery_redlock import LockLost
from tests.harness.deployment import Deployment
from tests.harness.lock_nodes import LockNodes
from tests.harness.waiting import until


@pytest.fixture
def key(key: str, nodes: LockNodes) -> Iterator[str]:
    """Give the key; undo the theft of its lock afterwards."""
    yield key
    nodes.undo_steal(key)


@pytest.mark.parametrize(
    "name",
    [
        "lost-stubborn",  # catches soft limits
        "lost-swallowed",  # catches Exception, and returns a result
    ],
)
def test_lost_run_ends_as_lost(prefork: Deployment, key: str, name: str) -> None:
    """A body that catches other errors does not make it another ending."""
    first = prefork.begin(name, key)

    prefork.nodes.steal(key, seconds=30)

    with pytest.raises(LockLost):
        first.get(timeout=60)
    assert first.state == states.FAILURE
    assert prefork.stage.outcomes(key) == ["LockLost"]


@pytest.mark.parametrize("name", ["lost-autoretry", "lost-retry"])
def test_lost_run_runs_again_when_the_lock_is_free(
    prefork: Deployment, key: str, name: str
) -> None:
    """The job is republished, by ``autoretry_for=(LockLost,)`` and under ``retry``."""
    first = prefork.begin(name, key)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.outcomes(key)[0] == "LockLost")
    prefork.nodes.undo_steal(key)
    prefork.stage.open(key)

    assert first.get(timeout=60) == first.id
    assert prefork.stage.outcomes(key) == ["LockLost", "done"]
    assert {run.task_id for run in prefork.stage.runs(key)} == {first.id}


# -- Nodes -------------------------------------------------------------------------


def test_hung_majority_stops_the_body(frail: Deployment, key: str) -> None:
    """When too few nodes answer a renewal, the body ends when its lock expires."""
    first = frail.begin("short", key)

    with frail.nodes.majority_paused(), pytest.raises(LockLost):
        first.get(timeout=60)

    assert frail.stage.outcomes(key) == ["LockLost"]
    frail.nodes.until_free(key)
