"""Check: which nodes vote, and what keeps the others from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.core.support import restart

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.testing import FakeNodes


def test_check_of_healthy_nodes_finds_nothing(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """All vote, and no lock is left by the asking."""
    report = redlock.check()

    assert report.problems == []
    assert report.has_quorum
    assert report.waits is None
    names = nodes.nodes[0].memory.redis.keys()
    assert sorted(names) == [b"redlock:fence", b"redlock:meta"]


def test_check_begins_the_quarantine_of_new_nodes(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """Asked at worker start, so that the wait is over sooner."""
    restart(nodes, 0, 1, 2)
    nodes.nodes[4].kill()

    report = redlock.check()

    assert not report.has_quorum
    assert report.waits == pytest.approx(62.2)
    assert report.problems == [
        "node-1:6379/0 is in quarantine for 62.2 s",
        "node-2:6379/0 is in quarantine for 62.2 s",
        "node-3:6379/0 is in quarantine for 62.2 s",
        "node-5:6379/0 refused the connection",
    ]
