"""Releases to resend when a node reconnects.

Each is sent once when there is a connection again, and once more a second later: the
node may still find an acquire or a renewal in the buffers of the broken connection, and
run it after the first release. Anything that remains even so ends after one ttl.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.transport.requests import ScriptRequest

__all__ = ["PendingReleases"]

_SECOND_SEND_AFTER = 1.0  # seconds after the first


class _PendingRelease(NamedTuple):
    request: ScriptRequest
    node: int
    due_at: float
    is_second: bool


class PendingReleases(dict[tuple[object, ...], _PendingRelease]):
    """Requests that must arrive, each one once, oldest first."""

    __slots__ = ()

    def add(self, request: ScriptRequest, node: int, now: float) -> None:
        """Keep a request that did not arrive, unless it may be dropped."""
        # The errors: a signal handler has changed it meanwhile.
        with contextlib.suppress(RuntimeError, StopIteration):
            while self:
                name, oldest = next(iter(self.items()))
                if oldest.request.resend_until > now:
                    break
                self.pop(name, None)
        if request.resend_until > now:
            script, keys, args = request.call
            name = (script.name, *keys, *args)
            self[name] = _PendingRelease(request, node, now, is_second=False)

    def due(self, now: float) -> Iterator[tuple[ScriptRequest, int]]:
        """Yield the requests to send now, as new requests."""
        for name, entry in list(self.items()):
            if entry.request.resend_until <= now:
                self.pop(name, None)
            elif entry.due_at <= now:
                self.pop(name, None)  # a send that failed may have dropped it
                if not entry.is_second:
                    later = now + _SECOND_SEND_AFTER
                    self[name] = entry._replace(due_at=later, is_second=True)
                yield entry.request.again(), entry.node
