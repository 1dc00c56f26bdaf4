"""A project whose broker is a Redis that a Sentinel knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from celery_redlock.devnodes.processes import Process, free_port
from celery_redlock.options.broker import visibility_timeout
from tests.harness.processes import RedisServer
from tests.harness.waiting import until
from tests.projects.app import notes
from tests.projects.conftest import Project


@pytest.mark.long
def test_calls_run_once_and_in_turn_on_a_broker_behind_a_sentinel(
    start: Callable[..., Project],
    redis_server: str,
    redis_broker: RedisServer,
    tmp_path: Path,
) -> None:
    """Its visibility timeout is known, though its URL does not begin with `redis`."""
    port, config = free_port(), tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor main 127.0.0.1 {redis_broker.port} 1\n"
    )
    sentinel = Process(
        "sentinel",
        [redis_server, str(config), "--sentinel"],
        log=tmp_path / "sentinel.log",
        ready="+monitor master main",
    )
    sentinel.start()
    try:
        sentinel.wait_until_ready()
        with redis.Redis(port=port, protocol=2) as client:
            until(lambda: client.sentinel_master("main")["flags"] == "master")
        transport = {"master_name": "main", "visibility_timeout": 7200}
        project = start(
            "sentinel",
            {
                "broker_url": f"sentinel://127.0.0.1:{port}/0",
                "broker_transport_options": transport,
            },
        )

        results = [project.sync.delay(number) for number in range(5)]

        assert [one.get(timeout=60) for one in results] == [*range(5)]
        assert [one["step"] for one in notes("sync")] == ["began", "ended"] * 5
        assert visibility_timeout(project.app) == 7200
    finally:
        sentinel.kill()
