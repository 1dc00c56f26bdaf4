"""Tokens that were wrong: after a few, no further token is compared for a while.

A client has `AT_ONCE` tries, and then one more every `EVERY` seconds; all clients
together have ten times as many. A client is an IPv4 address, or a network (/64) of IPv6
addresses. Behind a proxy all readers are one client: while one of them guesses, the
others cannot release a lock on the page, and `celery redlock release` still does.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from celery_redlock.basics.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from celery_redlock.basics.clock import Clock

AT_ONCE = 5
EVERY = 10.0  # seconds
_ALL = ""  # the name of all clients together
_TIMES = 10  # as many tries for all clients as for one
_MOST = AT_ONCE * EVERY  # seconds: what so many tries cost
_MOST_KNOWN = 1000  # clients


class Guesses:
    """The tries that each client has left. Many threads may use it at once."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        # Until when the tries of a client have not all come back.
        self._until: OrderedDict[str, float] = OrderedDict()

    def take(self, address: str) -> float:
        """Take one try of a client.

        Returns:
            0; or the seconds until it has another one, and nothing was taken.
        """
        with self._mutex:
            most = max(self._left(one) + every for one, every in _clients(address))
            if most > _MOST:
                return most - _MOST
            self._add(address, 1)
            return 0.0

    def give_back(self, address: str) -> None:
        """Give a try back, because its token was right."""
        with self._mutex:
            self._add(address, -1)

    def _left(self, client: str) -> float:
        return max(0.0, self._until.get(client, 0.0) - self._clock.monotonic())

    def _add(self, address: str, tries: int) -> None:
        for client, every in _clients(address):
            left = max(0.0, self._left(client) + tries * every)
            self._until[client] = self._clock.monotonic() + left
            self._until.move_to_end(client)
        while len(self._until) > _MOST_KNOWN:
            self._until.popitem(last=False)


def _clients(address: str) -> tuple[tuple[str, float], ...]:
    """Return the client and all clients, each with the seconds that a try costs."""
    try:
        known = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:  # an IPv4 address, or none
        client = address
    else:
        client = str(ipaddress.ip_network((known, 64), strict=False))
    return (client, EVERY), (_ALL, EVERY / _TIMES)
