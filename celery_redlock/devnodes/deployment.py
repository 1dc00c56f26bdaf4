"""The servers that have just been started are a new deployment: they vote at once."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from celery_redlock.locks.redlock import Redlock

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATIENCE = 20.0  # seconds: a server that has just started on a busy machine is slow


def initialize(urls: Sequence[str], max_ttl: float) -> None:
    """Let these servers vote, and not only after a ``max_ttl``.

    Raises:
        RedlockError: One of them does not answer within 20 s, or is not new.
    """
    ttl = min(30.0, max_ttl)
    with closing(
        Redlock(urls, ttl=ttl, max_ttl=max_ttl, connect_timeout=_PATIENCE)
    ) as redlock:
        redlock.initialize()
