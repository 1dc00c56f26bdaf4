"""The example on a store in place of lock nodes, without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redlock.devnodes import STORES
from tests.example.support import PATIENCE, Visitor, open_site
from tests.harness.store_nodes import store_servers
from tests.harness.waiting import until


@pytest.mark.parametrize("kind", STORES)
def test_site_locks_in_a_store(kind: str, tmp_path: Path) -> None:
    """Each of its servers can be stopped; a minority is not missed; no runs overlap."""
    members = len(store_servers(kind).nodes)
    with open_site(tmp_path, "--store", kind, report_seconds=2.0) as site:
        visitor = Visitor(site.url)
        visitor.wait("all vote", members)
        assert len(visitor.state()["nodes"]) == members
        visitor.press("run/", customer=1, times=5)
        if members > 1:
            visitor.press("nodes/1/stop/")
            visitor.wait("two vote", members - 1)
        assert visitor.press("nodes/0/stop/") == "Server 1 was killed."
        visitor.wait("none votes", 0)
        said = visitor.press("nodes/0/start/")
        assert said == "Server 1 runs again, with what it had on disk."
        visitor.wait("locks are granted again", max(1, members - 1))
        visitor.press("run/", customer=2, times=5)

        def is_done() -> bool:
            runs = visitor.state()["runs"]
            return {"report:1", "report:2"} <= {
                run["key"] for run in runs if run["state"] == "done"
            }

        until(is_done, PATIENCE, what="reports of both")
        assert visitor.state()["overlaps"] == 0
