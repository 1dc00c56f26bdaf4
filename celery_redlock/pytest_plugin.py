"""Real lock nodes for the tests of a project that locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.devnodes import DevNodes


@pytest.fixture(scope="session")
def redlock_nodes() -> Iterator[DevNodes]:
    """Give three real redis-servers, started once: `.urls` is for ``redlock_nodes``.

    They are initialized for the default ``redlock_max_ttl`` of 60 seconds.

    Raises:
        RedlockError: There is no redis-server on this machine.
    """
    from celery_redlock.devnodes import DevNodes

    with DevNodes(3) as nodes:
        yield nodes
