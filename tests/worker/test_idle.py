"""A worker with nothing to do does nothing: no loop of it goes on turning."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from celery_redlock import DuplicateTask
from tests.harness.deployment import Deploy
from tests.harness.lock_nodes import lock_nodes
from tests.harness.waiting import until
from tests.worker.project.turns import TURNS, turns_in

pytestmark = pytest.mark.long

_MOST = 500  # turns in a second of all processes of a worker; one that spins: 10,000


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_worker_without_work_does_nothing(
    pool: str, deploy: Deploy, key: str, tmp_path: Path, redis_server: str
) -> None:
    """After each use of the nodes, its loops come to rest.

    A reply that comes after its verdict, and a node that comes back, leave nothing that
    is watched and not read. While a body waits, it looks for its gate 100 times a
    second.
    """
    if pool in ("gevent", "eventlet"):
        pytest.importorskip(pool)
    folder = tmp_path / "turns"
    folder.mkdir()

    def until_idle(after: str) -> None:
        what = f"rest after {after}"
        until(lambda: _turns_in_a_second(folder) < _MOST, 20, what=what)

    with lock_nodes(3, binary=redis_server) as nodes:
        settings = {TURNS: str(folder)}
        worker = deploy(nodes, pool=pool, concurrency=2, settings=settings)
        until_idle("its start")

        worker.send("quick", f"{key}-first").get(timeout=60)
        assert turns_in(folder) > 0, "the turns are not counted"
        until_idle("a task")

        held = worker.begin("job", key)
        until_idle("an acquire")
        with pytest.raises(DuplicateTask):
            worker.send("job", key).get(timeout=60)
        until_idle("a refusal")

        nodes.dev.nodes[0].kill()
        worker.send("quick", f"{key}-second").get(timeout=60)
        until_idle("the end of a node")
        nodes.dev.nodes[0].restart()
        worker.send("quick", f"{key}-third").get(timeout=60)
        until_idle("its return")

        with nodes.minority_paused():
            worker.send("quick", f"{key}-fourth").get(timeout=60)
        until_idle("late replies")

        worker.finish(key, held)
        until_idle("a release")


def _turns_in_a_second(folder: Path) -> int:
    before, since = turns_in(folder), time.monotonic()
    until(lambda: time.monotonic() - since >= 1.0)
    return turns_in(folder) - before
