"""Lease, nested locks, threads and signals in the body of a locked task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock import DuplicateTask
from tests.harness.waiting import until

if TYPE_CHECKING:
    from tests.harness.deployment import Deployment


def test_lease_in_the_body_names_key_validity_and_a_growing_fence(
    any_pool: Deployment, key: str
) -> None:
    """``current_lease()`` is the run's own lease; each later run's fence is greater."""
    leases = [any_pool.send("informed", key).get(timeout=10) for _ in range(5)]

    fences = [lease["fence"] for lease in leases]
    assert fences == sorted(set(fences))
    assert {lease["key"] for lease in leases} == {key}
    assert all(0 < lease["remaining"] < 30 for lease in leases)


def test_nested_take_of_the_own_lock_is_reentrant(
    any_pool: Deployment, key: str
) -> None:
    """A body may take its own lock again; only the outermost block frees it."""
    result = any_pool.begin("nested", key)
    assert len(any_pool.nodes.holders(key)) >= any_pool.nodes.quorum

    any_pool.stage.open(key)

    assert result.get(timeout=10) is True


def test_recursion_does_not_meet_its_own_lock(any_pool: Deployment, key: str) -> None:
    """A task that calls itself inside its own run is not refused: it is one run."""
    assert any_pool.send("recursive", key, 5).get(timeout=10) == 5


def test_thread_of_the_body_does_not_inherit_the_lock(
    any_pool: Deployment, key: str
) -> None:
    """Another thread or greenlet is another execution, and finds the lock held."""
    assert any_pool.send("spawning", key).get(timeout=15) == "held"


def test_hold_at_least_keeps_the_lock_after_a_fast_run(
    prefork: Deployment, key: str
) -> None:
    """Until ``hold_at_least`` ends, an equal call of a late clock is a duplicate."""
    first = prefork.send("keeping", key)
    assert first.get(timeout=10) == first.id
    (run,) = prefork.stage.runs(key)

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send("keeping", key).get(timeout=10)

    until(lambda: len(prefork.nodes.holders(key)) < prefork.nodes.quorum)
    assert prefork.stage.now() - run.began >= 1.9  # of 2.0, from the acquire on
    prefork.nodes.until_free(key)
    second = prefork.send("keeping", key)
    assert second.get(timeout=10) == second.id
    prefork.nodes.until_free(key)


def test_signals_tell_the_life_of_a_lock(any_pool: Deployment, key: str) -> None:
    """The signals of the lock are sent where the task runs, with the task's id."""
    result = any_pool.begin("short", key)
    until(lambda: any_pool.stage.notes(key, "signal-renewed"))

    any_pool.stage.open(key)

    assert result.get(timeout=10) == result.id
    for event in ("signal-acquired", "signal-released"):
        notes = until(lambda: any_pool.stage.notes(key, event))  # noqa: B023
        assert [note["task_id"] for note in notes] == [result.id]
    assert any_pool.stage.notes(key, "signal-lost") == []


def test_signal_of_a_conflict_tells_the_decision(prefork: Deployment, key: str) -> None:
    """The signal of a refused duplicate names the duplicate and the decision."""
    prefork.begin("job", key)

    second = prefork.send("job", key)

    (note,) = until(lambda: prefork.stage.notes(key, "signal-conflict"))
    assert (note["task_id"], note["decision"]) == (second.id, "Skip")


def test_heartbeat_signal_renews_the_lock_now(any_pool: Deployment, key: str) -> None:
    """A body that sends ``lock_heartbeat`` has its lock renewed without waiting."""
    assert any_pool.send("beating", key).get(timeout=10) is True
