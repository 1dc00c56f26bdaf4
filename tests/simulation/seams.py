"""Put simulated threads, queues, sockets and dice under the real core.

These are all the places in which the core touches the world; its code above
them runs unchanged.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_redlock import locking
from celery_redlock.core import (
    connector,
    failure,
    fanout,
    lease,
    redlock,
    renewal,
)
from tests.simulation.sync import SimLowLevel, SimQueueModule, SimThreading
from tests.simulation.witness import ObservedLease
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
    (renewal, "queue", SimQueueModule),
    (locking, "threading", SimThreading),
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
