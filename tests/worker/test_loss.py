"""Each answer of ``on_lock_lost``, for a run that loses its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import states

from celery_redlock import LockLost
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.deployment import Deployment
    from tests.harness.lock_nodes import LockNodes


@pytest.fixture
def key(key: str, nodes: LockNodes) -> Iterator[str]:
    """Give the key; undo the theft of its lock afterwards."""
    yield key
    nodes.undo_steal(key)


@pytest.mark.parametrize(
    "name",
    [
        "lost-other-autoretry",  # autoretry_for=(Exception,)
        "lost-stubborn",  # catches soft limits
        "lost-swallowed",  # catches Exception, and returns a result
        "lost-deaf",  # catches LockLost, and goes on
    ],
)
def test_lost_run_ends_as_lost(prefork: Deployment, key: str, name: str) -> None:
    """Neither ``autoretry_for`` nor what the body catches makes it another ending."""
    first = prefork.begin(name, key)

    prefork.nodes.steal(key, seconds=30)

    with pytest.raises(LockLost):
        first.get(timeout=60)
    assert first.state == states.FAILURE
    assert len(prefork.stage.notes(key, "caught")) == (name == "lost-deaf")
    assert prefork.stage.outcomes(key) == ["LockLost"]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("lost-autoretry", ()),  # autoretry_for=(LockLost,)
        ("lost-retry", ()),
        ("lost-mutating", ([1, 2, 3],)),  # clears its list
    ],
)
def test_lost_run_runs_again_when_the_lock_is_free(
    prefork: Deployment, key: str, name: str, args: tuple[list[int], ...]
) -> None:
    """The job is republished under ``retry``, with the arguments as they came."""
    first = prefork.begin(name, key, *args)

    prefork.nodes.steal(key, seconds=30)
    until(lambda: prefork.stage.outcomes(key)[0] == "LockLost")
    prefork.nodes.undo_steal(key)
    prefork.stage.open(key)

    assert first.get(timeout=60) == (args[0] if args else first.id)
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
