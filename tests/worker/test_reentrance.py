"""A body that takes a key that it holds: ``apply()`` from within its own run.

Nested ``task.lock``, recursion and threads are in ``test_inside``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.worker.harness.deployment import Deployment

pools = pytest.mark.parametrize("pool", ["prefork", "threads"])


@pools
def test_apply_in_the_body_is_the_same_execution(
    deploy: Callable[..., Deployment], key: str, pool: str
) -> None:
    """Where eager runs take locks, one inside of the other shares its lease."""
    here = deploy(pool=pool, settings={"redlock_eager": True})

    tokens = here.send("applying", key, 2).get(timeout=10)

    assert len(tokens) == 3
    assert len(set(tokens)) == 1
    assert all(tokens)
    here.nodes.until_free(key)


@pools
def test_apply_in_the_body_takes_no_lock_by_default(
    deployed: Callable[[str], Deployment], key: str, pool: str
) -> None:
    """It runs in the body, under the lock of the body, and does not wait for it."""
    tokens = deployed(pool).send("applying", key, 2).get(timeout=10)

    assert len(set(tokens)) == 1


@pools
def test_apply_in_a_thread_of_the_body_is_another_execution(
    deploy: Callable[..., Deployment], key: str, pool: str
) -> None:
    """The lock is held for it: it does not run beside the body that started it."""
    here = deploy(pool=pool, settings={"redlock_eager": True})

    answer = here.send("applying-elsewhere", key, 1).get(timeout=15)

    assert answer == "DuplicateTask"
