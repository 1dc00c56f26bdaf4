"""Put simulated threads, queues, sockets and dice under the real core.

These are all the places in which the core touches the world; its code above
them runs unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_redlock import locking
from celery_redlock.core import (
    connector,
    failure,
    fanout,
    inbox,
    lease,
    redlock,
    renewal,
    waiting,
    wakeup,
)
from tests.simulation.network import Selector
from tests.simulation.observed import ObservedLease
from tests.simulation.sync import SimLowLevel, SimQueueModule, SimThreading
from tests.simulation.world import World, here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.address import NodeAddress

__all__ = ["simulated_seams"]


class _Secrets:
    """Stands in for the module ``secrets``: unique, and readable in a history."""

    @staticmethod
    def token_hex(size: int) -> str:
        """Return the next name that this process mints."""
        process = here().process
        process.minted += 1
        return f"{process.name}x{process.minted}".rjust(2 * size, "0")


class _Channels:
    """Stands in for the module ``secrets`` where channels are named."""

    @staticmethod
    def token_hex(_: int) -> str:
        """Return a name that nobody else in this world has."""
        return f"process{World.current.witness.network.new_number()}"


class _Selectors:
    """Stands in for the module ``selectors``."""

    DefaultSelector = Selector
    EVENT_READ = selectors.EVENT_READ


class _Random:
    """Stands in for the module ``random``."""

    @staticmethod
    def uniform(low: float, high: float) -> float:
        """Return a number by the dice of the process that asks."""
        return here().process.rng.uniform(low, high)


def _open_link(address: NodeAddress, timeout: float) -> Any:
    return World.current.witness.network.open_link(address, timeout)


_SEAMS: tuple[tuple[Any, str, Any], ...] = (
    (connector, "_thread", SimLowLevel),
    (connector, "open_link", _open_link),
    (fanout, "threading", SimThreading),
    (renewal, "threading", SimThreading),
    (inbox, "queue", SimQueueModule),
    # Else leases here, which last a second or two, would all be urgent.
    (inbox, "_LONGEST_SLEEP", 0.2),
    (inbox, "_SOON", 0.25),
    (locking, "threading", SimThreading),
    (wakeup, "_thread", SimLowLevel),
    (wakeup, "threading", SimThreading),
    (wakeup, "selectors", _Selectors),
    (wakeup, "secrets", _Channels),
    (waiting, "random", _Random),
    (lease, "secrets", _Secrets),
    (failure, "random", _Random),
    (redlock, "Lease", ObservedLease),
)


@contextlib.contextmanager
def simulated_seams() -> Iterator[None]:
    """Let the core run in the simulated world while the block runs."""
    with contextlib.ExitStack() as stack:
        for module, name, replacement in _SEAMS:
            stack.enter_context(mock.patch.object(module, name, replacement))
        logger = logging.getLogger("celery_redlock")
        before = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        stack.callback(logger.setLevel, before)
        yield
