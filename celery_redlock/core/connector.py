"""Make a connection in the background, and again after a while when that failed.

::

    idle ──begin──► busy ──handshake done──► take() gives the link
      ▲               └─────failed─────────► take() says why ──► pause, doubling
      └──────────────────────────────────────────────────────────────┘

DNS, TCP, TLS, AUTH and the look at what kind of server it is happen in a thread
that ends when they are done. Whether somebody should wait for it is another
question: *hopeful* are a first connection, one in the place of one that was well,
and one after a refusal so long ago that it says nothing now.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

from celery_redlock.core.link import open_link

if TYPE_CHECKING:
    from celery_redlock.core.address import NodeAddress
    from celery_redlock.core.clock import Clock
    from celery_redlock.core.link import Link

__all__ = ["Connector"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds
_LONG_AGO = 1.0


class _Attempt:
    """What a thread that connects leaves behind, for whoever still wants it."""

    __slots__ = ("arrival", "arrived_at", "is_wanted")

    def __init__(self) -> None:
        self.arrival: Link | str | None = None
        self.arrived_at = 0.0
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
        self.forget()

    def forget(self) -> None:
        """Start anew, in a forked child: the thread stayed with the parent."""
        self.failures = 0
        self._attempt: _Attempt | None = None
        self._hopeful = False
        self._next_at = 0.0

    def abandon(self) -> None:
        """Close what has come of an attempt, or what will."""
        attempt, self._attempt = self._attempt, None
        if attempt:
            attempt.is_wanted = False
            _close_unwanted(attempt)

    @property
    def is_busy(self) -> bool:
        """Whether a connection is being made, and nothing has come of it yet."""
        return self._attempt is not None and self._attempt.arrival is None

    @property
    def is_hopeful(self) -> bool:
        """Whether a connection is being made that is worth waiting for."""
        return self._attempt is not None and self._hopeful

    def begin(self) -> None:
        """Start an attempt, unless one is under way or it is too early."""
        now = self._clock.monotonic()
        if self._attempt or now < self._next_at:
            return
        self._hopeful = not self.failures or now - self._next_at > _LONG_AGO
        attempt = _Attempt()
        try:
            # Not by `threading`, whose `start` waits for the thread: the exception of
            # a time limit that strikes in there spoils the lock that both share. None
            # can strike between these two lines, as nothing is called.
            self._attempt = attempt
            _thread.start_new_thread(self._connect, (attempt,))
        except RuntimeError as error:  # there are too many
            self._arrive(attempt, f"cannot be connected to: {error}")

    def take(self) -> Link | str | None:
        """Return what came of the attempt: a link, why there is none, or None yet."""
        attempt = self._attempt
        if attempt is None or attempt.arrival is None:
            return None
        self._attempt = None
        if isinstance(attempt.arrival, str):
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self.failures)
            self.failures += 1
            self._next_at = attempt.arrived_at + pause
        return attempt.arrival

    def settle(self, *, usable: bool) -> None:
        """Note that there is a link now; one that is of no use is tried again."""
        self.failures = 0
        pause = _FIRST_PAUSE if usable else _LONGEST_PAUSE
        self._next_at = self._clock.monotonic() + pause

    def _connect(self, attempt: _Attempt) -> None:
        try:
            arrival = open_link(self._address, self.timeout)
        except Exception as error:  # noqa: BLE001  (else it would be busy for ever)
            arrival = f"cannot be connected to: {error!r}"
        self._arrive(attempt, arrival)

    def _arrive(self, attempt: _Attempt, arrival: Link | str) -> None:
        attempt.arrived_at = self._clock.monotonic()
        attempt.arrival = arrival
        _close_unwanted(attempt)


def _close_unwanted(attempt: _Attempt) -> None:
    # Asked by both after their word, so that the later of the two sees the other's.
    arrival = attempt.arrival
    if not attempt.is_wanted and arrival and not isinstance(arrival, str):
        arrival.close()
