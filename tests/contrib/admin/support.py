"""Locks of a worker elsewhere, and the text of admin pages."""

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
    """Return the holder info of a task in a worker."""
    return Holder(
        "",
        task="proj.send_invoice",
        task_id="id-of-it",
        host="worker-1",
        pid=pid,
        started=1_790_000_000.0,
    )


def hold(service: Redlock, key: str, holder: Holder | None = None) -> Lease:
    """Take a lock, and return when all nodes have it, not only a majority."""
    lease = service.acquire(key, ttl=60.0, holder=holder)
    until(
        lambda: service.inspect(key).votes == len(service.labels),
        5.0,
        what=f"{key} on all nodes",
    )
    return lease


def text_of(response: Any) -> str:
    """Return the text of a page, without its tags."""
    page = re.sub(
        r"(?s)<(style|script).*?</\1>|<[^>]*>", " ", response.content.decode()
    )
    return " ".join(page.split())
