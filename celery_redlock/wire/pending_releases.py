"""Releases to resend: when a node is back, or some time after it refused them.

A node is back when it has a connection again and may vote. A release without an answer
is sent then, and once more a second later: the node may still find an acquire or a
renewal in the buffers of the broken connection, and run it after the first release.

A release that a node answered with an error (-BUSY, -LOADING, -NOREPLICAS, -OOM,
-READONLY, any other) is sent again after a pause, which doubles each time, up to 8 s.
Where many wait, it is longer: a node gets about a hundred of them a second.

Anything that remains even so ends after its ttl. So do the oldest of more than ten
thousand, which are dropped: a node may refuse all releases for as long as it is up.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.basics.backoff import doubled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.wire.requests import ScriptRequest


_SECOND_SEND_AFTER = 1.0  # seconds after the first
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0  # seconds, after a refusal
_REFUSED_PER_SECOND = 100
_MOST = 10_000  # releases
_FEW, _LOOK_EVERY = 100, 0.1  # seconds between two looks at more than a few


class _PendingRelease(NamedTuple):
    request: ScriptRequest
    due_at: float
    is_second: bool


class PendingReleases(dict[tuple[object, ...], _PendingRelease]):
    """Requests that must arrive at one node, each one once, oldest first."""

    __slots__ = ("_looked_at",)

    def __init__(self) -> None:
        super().__init__()
        self._looked_at = -math.inf

    def add(self, request: ScriptRequest, now: float) -> None:
        """Keep a request that did not arrive, unless it may be dropped."""
        self._keep(_PendingRelease(request, now, is_second=False), now)

    def add_refused(self, request: ScriptRequest, now: float) -> None:
        """Keep a request that the node answered with an error, as ``add`` does."""
        longest = max(_LONGEST_PAUSE, len(self) / _REFUSED_PER_SECOND)
        pause = doubled(_FIRST_PAUSE, request.resends, longest)
        # A second send that is still due has its reason, and follows this one.
        is_second = _name_of(request) not in self
        self._keep(_PendingRelease(request, now + pause, is_second), now)

    def _keep(self, entry: _PendingRelease, now: float) -> None:
        # The errors: a signal handler has changed it meanwhile.
        with contextlib.suppress(RuntimeError, StopIteration):
            while self:
                name, oldest = next(iter(self.items()))
                if oldest.request.resend_until > now and len(self) < _MOST:
                    break
                self.pop(name, None)
        if entry.request.resend_until > now:
            self[_name_of(entry.request)] = entry

    def due(self, now: float) -> Iterator[ScriptRequest]:
        """Yield the requests to send now, as new requests."""
        # With many that wait, not each request pays for a look at all of them.
        if len(self) > _FEW and now < self._looked_at + _LOOK_EVERY:
            return
        self._looked_at = now
        for name in list(self):  # not the items: a finaliser may come between tuples
            entry = self.get(name)
            if entry is None:
                continue
            if entry.request.resend_until <= now:
                self.pop(name, None)
            elif entry.due_at <= now:
                yield entry.request.again()
                # It stays until it was sent: the caller may be interrupted.
                if self.get(name) is not entry:  # the send has failed
                    continue
                if entry.is_second:
                    del self[name]
                else:
                    later = now + _SECOND_SEND_AFTER
                    self[name] = entry._replace(due_at=later, is_second=True)


def _name_of(request: ScriptRequest) -> tuple[object, ...]:
    script, keys, args = request.call
    return (script.name, *keys, *args)
