"""Five fake nodes, a clock that stands still, and a service on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.testing import FakeClock, FakeNodes

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock()


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give five nodes."""
    return FakeNodes(5, clock=clock)


@pytest.fixture
def redlock(nodes: FakeNodes) -> Redlock:
    """Give a service with a ttl of 10 s on the five nodes, which vote."""
    return nodes.redlock(ttl=10.0)


@pytest.fixture
def rival(nodes: FakeNodes, redlock: Redlock) -> Redlock:
    """Give the service of another process on the same nodes."""
    return nodes.another_client().redlock(ttl=10.0)
