"""Three candidates on five fake nodes."""

from __future__ import annotations

import pytest

from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.election.support import Candidate


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give five nodes, as the first candidate sees them."""
    return FakeNodes(5, clock=clock)


@pytest.fixture
def candidates(nodes: FakeNodes) -> list[Candidate]:
    """Give three candidates that have not campaigned."""
    return [
        Candidate(nodes),
        Candidate(nodes.another_client()),
        Candidate(nodes.another_client()),
    ]
