"""Make a connection in the background, and try again after a pause if that failed.

::

    idle ──begin──► busy ──handshake done──► take() returns the connection
      ▲               └─────failed─────────► take() returns why ──► pause, doubling
      └─────────────────────────────────────────────────────────────────┘

DNS, TCP, TLS, AUTH and the check of the server happen in a thread that ends when they
are done. Calls wait for a connection only if the attempt is *hopeful*: the first one,
one that replaces a connection that worked, or one long after the last failure. After
some seconds it is not any more: a name service may hang, or a server may send its
greeting byte by byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.basics.backoff import doubled
from celery_redlock.basics.forks import forks_wait
from celery_redlock.basics.process import start_thread
from celery_redlock.wire.connection import NO_TLS_YET, NOT_YET, open_connection
from celery_redlock.wire.store_connection import open_store

if TYPE_CHECKING:
    from celery_redlock.basics.clock import Clock
    from celery_redlock.wire.connection import Connection
    from celery_redlock.wire.store_connection import StoreConnection
    from celery_redlock.wire.url import NodeAddress


_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds
_LONG_AGO = 1.0
_HOPE_LASTS = 10.0  # seconds

_FORK_WAITS = 0.2  # seconds: a node may not answer


class _Attempt:
    """The result of a thread that connects, and whether it is still wanted."""

    __slots__ = ("began_at", "ended_at", "is_wanted", "result")

    def __init__(self, now: float) -> None:
        self.began_at = now
        self.result: Connection | StoreConnection | str | None = None
        self.ended_at = 0.0
        self.is_wanted = True


class Connector:
    """Connects to one node.

    Attributes:
        timeout: Seconds that a connection may take to be made.
        failures: How many attempts in a row have failed.
    """

    def __init__(self, address: NodeAddress, *, clock: Clock, timeout: float) -> None:
        self.timeout = timeout
        self._address = address
        self._clock = clock
        self.forget_parent()

    def forget_parent(self) -> None:
        """Start anew in a forked child: the thread stayed with the parent."""
        self.failures = 0
        self._attempt: _Attempt | None = None
        self._hopeful = False
        self._next_at = 0.0

    def abandon(self) -> None:
        """Close the connection that an attempt has made, or will make.

        A connection that was taken before is closed by its user.
        The next attempt is a first one: it needs no pause, and is worth waiting for.
        """
        attempt, self._attempt = self._attempt, None
        self.failures, self._next_at = 0, 0.0
        if attempt:
            attempt.is_wanted = False
            _close_unwanted(attempt)

    def hurry(self) -> None:
        """Let the next attempt need no pause: the last connection was well."""
        self.failures, self._next_at = 0, 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a connection is being made and has no result yet. For tests."""
        return self._attempt is not None and self._attempt.result is None

    @property
    def is_hopeful(self) -> bool:
        """Whether a connection is being made that is worth waiting for."""
        attempt = self._attempt
        if attempt is None or not self._hopeful:
            return False
        return self._clock.monotonic() < attempt.began_at + self.hope_lasts

    @property
    def delay(self) -> str:
        """The reason of a request that waits for the connection, in words."""
        return NO_TLS_YET if self._address.url.scheme == "rediss" else NOT_YET

    @property
    def hope_lasts(self) -> float:
        """Seconds for which an attempt may be worth waiting for."""
        return max(_HOPE_LASTS, self.timeout)

    def begin(self) -> None:
        """Begin an attempt, unless one is under way or it is too early."""
        now = self._clock.monotonic()
        if self._attempt or now < self._next_at:
            return
        self._hopeful = not self.failures or now - self._next_at > _LONG_AGO
        attempt = self._attempt = _Attempt(now)
        if not start_thread(self._connect, attempt):
            self._end(attempt, "cannot be connected to: there can be no new thread")

    def take(self) -> Connection | StoreConnection | str | None:
        """Return the new connection, why it failed, or None while it is being made."""
        attempt = self._attempt
        if attempt is None or attempt.result is None:
            return None
        self._attempt = None
        if isinstance(attempt.result, str):
            pause = doubled(_FIRST_PAUSE, self.failures, _LONGEST_PAUSE)
            self.failures += 1
            self._next_at = attempt.ended_at + pause
        return attempt.result

    def accept(self, *, usable: bool) -> None:
        """Note that there is a connection. One that is unusable is replaced later."""
        self.failures = 0
        pause = _FIRST_PAUSE if usable else _LONGEST_PAUSE
        self._next_at = self._clock.monotonic() + pause

    def _connect(self, attempt: _Attempt) -> None:
        opened = open_store if self._address.is_store else open_connection
        with forks_wait(_FORK_WAITS):
            try:
                result = opened(self._address, self.timeout)
            except Exception as error:  # noqa: BLE001  (else it would be busy for ever)
                # Not its repr: that of a UnicodeEncodeError has the whole text.
                result = f"cannot be connected to: {type(error).__name__}: {error}"
            self._end(attempt, result)

    def _end(
        self, attempt: _Attempt, result: Connection | StoreConnection | str
    ) -> None:
        attempt.ended_at = self._clock.monotonic()
        attempt.result = result
        _close_unwanted(attempt)


def _close_unwanted(attempt: _Attempt) -> None:
    # Both threads call it after their own change, so the later one sees both changes.
    result = attempt.result
    if not attempt.is_wanted and result and not isinstance(result, str):
        result.close()
