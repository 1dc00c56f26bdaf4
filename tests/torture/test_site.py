"""The site tells whether a node may vote, so that the faults go on to spoil it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from celery_redlock.locks.redlock import Redlock
from tests.conftest import with_long
from tests.torture.site import Site

STORES = ["", "postgresql", "etcd", "zookeeper"]


@pytest.mark.parametrize("store", with_long(STORES, "etcd", "zookeeper"))
def test_node_votes_when_it_was_founded(tmp_path: Path, store: str) -> None:
    """No fault reaches a node that seems not to vote: it might be founded just now."""
    site = Site(tmp_path, 1, store=store)
    with closing(site.ledger), site.nodes as nodes:
        with closing(Redlock(nodes.urls)) as redlock:
            redlock.initialize()
        assert all(site.votes(number) for number in range(len(nodes.nodes)))
