"""A body and its own lock: its lease, nested blocks, inner runs, threads, signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.waiting import until
from tests.worker.support import assert_refused, pools

if TYPE_CHECKING:
    from tests.harness.deployment import Deploy, Deployment


def test_lease_in_the_body_is_of_this_run(any_pool: Deployment, key: str) -> None:
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


# -- Inner runs --------------------------------------------------------------------


@pools
def test_apply_in_the_body_is_the_same_execution(
    deploy: Deploy, key: str, pool: str
) -> None:
    """Where eager runs take locks, an inner run shares the lease of the outer run."""
    here = deploy(pool=pool, settings={"redlock_eager": True})

    tokens = here.send("applying", key, 2).get(timeout=10)

    assert len(tokens) == 3
    assert len(set(tokens)) == 1
    assert all(tokens)
    here.nodes.until_free(key)


def test_apply_in_the_body_takes_no_lock_by_default(here: Deployment, key: str) -> None:
    """An eager run in a body runs under the body's lock, and does not wait for it."""
    tokens = here.send("applying", key, 2).get(timeout=10)

    assert len(set(tokens)) == 1


@pools
def test_apply_in_a_thread_of_the_body_is_another_execution(
    deploy: Deploy, key: str, pool: str
) -> None:
    """The thread finds the lock held: its call does not run beside the body."""
    here = deploy(pool=pool, settings={"redlock_eager": True})

    answer = here.send("applying-elsewhere", key, 1).get(timeout=15)

    assert answer == "DuplicateTask"


# -- Time and signals --------------------------------------------------------------


def test_hold_at_least_keeps_the_lock(prefork: Deployment, key: str) -> None:
    """Until ``hold_at_least`` ends, an equal call of a late clock is a duplicate."""
    first = prefork.send("keeping", key)
    assert first.get(timeout=10) == first.id
    (run,) = prefork.stage.runs(key)

    assert_refused(prefork.send("keeping", key), first)

    until(lambda: len(prefork.nodes.holders(key)) < prefork.nodes.quorum)
    assert prefork.stage.now() - run.began >= 1.9  # of 2.0, from the acquire on
    prefork.nodes.until_free(key)
    prefork.finish(key, prefork.send("keeping", key))
    prefork.nodes.until_free(key)


def test_signals_tell_the_life_of_a_lock(any_pool: Deployment, key: str) -> None:
    """The signals of the lock are sent where the task runs, with the task's id."""
    result = any_pool.begin("short", key)
    until(lambda: any_pool.stage.notes(key, "signal-renewed"))

    any_pool.finish(key, result)

    for event in ("signal-acquired", "signal-released"):
        notes = until(lambda: any_pool.stage.notes(key, event))  # noqa: B023
        assert [note["task_id"] for note in notes] == [result.id]
    assert any_pool.stage.notes(key, "signal-lost") == []


def test_heartbeat_signal_renews_the_lock_now(any_pool: Deployment, key: str) -> None:
    """A body that sends ``lock_heartbeat`` has its lock renewed without waiting."""
    assert any_pool.send("beating", key).get(timeout=10) is True
