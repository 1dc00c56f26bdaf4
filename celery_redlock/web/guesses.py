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
_MOST_KNOWN = 1000  # clients


class Guesses:
    """The tries that each client has left. Many threads may use it at once.

    Args:
        clock: Reads time.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """Take one try of a client.

        Returns:
            0; or the seconds until it has another one, and nothing was taken.
        """
        with self._mutex:
            left = max(self._wait(client) for client in _clients(address))
            if not left:
                self._add(address, 1.0)
            return left

    def give_back(self, address: str) -> None:
        """Give a try back, because its token was right."""
        with self._mutex:
            self._add(address, -1.0)

    def _wait(self, client: str) -> float:
        times = _TIMES if client == _ALL else 1
        over = self._spent_by(client) + 1 - AT_ONCE * times
        return max(0.0, over * EVERY / times)

    def _add(self, address: str, tries: float) -> None:
        now = self._clock.monotonic()
        for client in _clients(address):
            spent = max(0.0, self._spent_by(client) + tries)
            self._spent[client] = spent, now
            self._spent.move_to_end(client)
        while len(self._spent) > _MOST_KNOWN:
            self._spent.popitem(last=False)

    def _spent_by(self, client: str) -> float:
        spent, at = self._spent.get(client, (0.0, 0.0))
        times = _TIMES if client == _ALL else 1
        return max(0.0, spent - (self._clock.monotonic() - at) / EVERY * times)


def _clients(address: str) -> tuple[str, str]:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address, _ALL
    if known.version == 4:  # noqa: PLR2004  (IPv4)
        return address, _ALL
    return str(ipaddress.ip_network((known, 64), strict=False)), _ALL
