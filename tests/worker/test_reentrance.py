"""A body that takes a key that it holds: ``apply()`` from within its own run.

Nested ``task.lock``, recursion and threads are in ``test_inside``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.deployment import Deployment

pools = pytest.mark.parametrize("pool", ["prefork", "threads"])


@pools
def test_apply_in_the_body_is_the_same_execution(
    deploy: Callable[..., Deployment], key: str, pool: str
) -> None:
    """Where eager runs take locks, an inner run shares the lease of the outer run."""
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
    """An eager run in a body runs under the body's lock, and does not wait for it."""
    tokens = deployed(pool).send("applying", key, 2).get(timeout=10)

    assert len(set(tokens)) == 1


@pools
def test_apply_in_a_thread_of_the_body_is_another_execution(
    deploy: Callable[..., Deployment], key: str, pool: str
) -> None:
    """The thread finds the lock held: its call does not run beside the body."""
    here = deploy(pool=pool, settings={"redlock_eager": True})

    answer = here.send("applying-elsewhere", key, 1).get(timeout=15)

    assert answer == "DuplicateTask"
