"""The check of all nodes, and the start of a new deployment."""

from __future__ import annotations

import pytest

from celery_redlock.errors import RedlockError
from celery_redlock.locks.redlock import Redlock
from celery_redlock.members.deployment import initialize
from celery_redlock.wire.url import parse_node
from tests.unit.lock.support import Site, restart


def test_check_of_healthy_nodes_finds_nothing(site: Site) -> None:
    """All nodes vote, and the check leaves no lock behind."""
    report = site.redlock.check()

    assert report.problems == []
    assert report.has_quorum
    assert report.retry_after is None
    names = site.nodes.nodes[0].memory.redis.keys()
    assert sorted(names) == [b"redlock:meta"]


def test_check_begins_the_quarantine_of_new_nodes(site: Site) -> None:
    """A check at worker start begins the wait, so that it ends sooner."""
    restart(site.nodes, 0, 1, 2)

    report = site.redlock.check()

    assert not report.has_quorum
    assert report.retry_after == pytest.approx(62.2)
    assert report.problems == [
        f"node-{number}:6379/0 is in quarantine for 62.2 s" for number in range(1, 6)
    ]


UNUSED_PORT = "redis://:s3cr3t@127.0.0.1:1/0"  # port 1 is reserved


def test_initialize_changes_nothing_while_a_node_is_down(redlock: Redlock) -> None:
    """Initialize reads every node before it changes one, and hides the password."""
    address = parse_node(UNUSED_PORT)

    with pytest.raises(RedlockError) as caught:
        initialize(redlock.guard, [address], 1.0)

    assert str(caught.value).startswith("Node 127.0.0.1:1/0 refused the connection.")
    assert "nothing was changed" in str(caught.value)
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.__cause__!r}"
