"""Jobs whose locks are in a cluster, while one of its members is away."""

from __future__ import annotations

import pytest

from tests.harness.deployment import Site
from tests.harness.lock_nodes import lock_nodes
from tests.worker.support import assert_refused

AN_ELECTION = 60.0  # seconds, also on a busy machine: jobs are republished meanwhile


@pytest.mark.long
@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_jobs_go_on_while_one_member_is_killed(site: Site, key: str, kind: str) -> None:
    """Each member in turn: the other two grant locks, and know the one that is held."""
    with (
        lock_nodes(store=kind, members=3) as nodes,
        site.deploy(nodes, concurrency=2) as here,
    ):
        held = here.begin("job", key)
        for number, member in enumerate(nodes.dev.nodes):
            member.kill()
            names = [f"{key}-{number}-{job}" for job in range(4)]
            jobs = [here.send("quick", name) for name in names]
            for job in jobs:
                assert job.get(timeout=AN_ELECTION) == job.id
            assert [len(here.stage.runs(name)) for name in names] == [1] * 4
            assert_refused(here.send("job", key), held)
            assert not member.is_running
            member.restart()
        here.finish(key, held)
