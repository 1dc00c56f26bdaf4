"""docs/reference/keys.md lists the keys that are on real nodes."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from celery import Celery

from celery_redlock import Redlock, lock, singleton_task
from celery_redlock.election import Elector

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "keys.md"


def documented() -> set[str]:
    """Return the kinds of keys on the page: what follows the prefix."""
    text = PAGE.read_text(encoding="utf-8")
    return set(re.findall(r"^\| `redlock:([a-z]+)", text, re.MULTILINE))


def test_every_key_of_a_busy_deployment_is_documented(three_nodes: DevNodes) -> None:
    """Locks, waiting calls, claims, leaders and standbys leave documented keys only."""
    app = Celery("docs", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = three_nodes.urls

    @singleton_task(app=app, name="rebuild", unique_while="queued")
    def rebuild() -> None:
        """Wait in the queue."""

    rebuild.delay()
    leader, standby = (Redlock(three_nodes.urls) for _ in range(2))
    Elector(leader, "election").campaign()
    Elector(standby, "election").campaign()
    node = redis.Redis.from_url(three_nodes.urls[0])
    with lock(leader, "busy"):
        waiter = threading.Thread(target=wait_for, args=(standby, "busy"))
        waiter.start()
        found: set[str] = set()
        while "line" not in found:  # the waiter is in the queue
            found |= {key.decode().split(":")[1] for key in node.scan_iter("redlock:*")}
    waiter.join()

    assert {"lock", "line", "claim", "fence", "meta", "standby"} <= found
    assert found <= documented()
    node.close()
    app.close()
    leader.close()
    standby.close()


def wait_for(redlock: Redlock, key: str) -> None:
    """Wait for a lock and release it."""
    with lock(redlock, key, wait=30):
        pass
