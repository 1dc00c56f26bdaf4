"""Locks that a worker elsewhere holds, and what pages of the admin say of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from celery_redlock.core.lease import Holder
from tests.nodes.support import until

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock

__all__ = ["LIST", "MAY", "RELEASE", "hold", "text_of", "worker"]

LIST = "/admin/celery_redlock/heldlock/"
RELEASE = f"{LIST}release/"
MAY = "release_heldlock"


def worker(pid: int = 4711) -> Holder:
    """Return the facts of a task that runs in a worker."""
    return Holder(
        "",
        task="proj.send_invoice",
        task_id="id-of-it",
        host="worker-1",
        pid=pid,
        started=1_790_000_000.0,
    )


def hold(service: Redlock, key: str, facts: Holder | None = None) -> Lease:
    """Take a lock, and return when all nodes have it: a majority is quicker."""
    lease = service.acquire(key, ttl=60.0, facts=facts)
    until(
        lambda: service.inspect(key).votes == len(service.labels),
        5.0,
        what=f"{key} on all nodes",
    )
    return lease


def text_of(response: Any) -> str:
    """Return what a page says, without its tags."""
    page = re.sub(
        r"(?s)<(style|script).*?</\1>|<[^>]*>", " ", response.content.decode()
    )
    return " ".join(page.split())
