"""Wall clocks of redis-servers that tests can step, by libfaketime."""

from __future__ import annotations

import time

from celery_redlock.devnodes import DevNodes
from tests.conftest import missing
from tests.harness.clocks import Clock, ClockError, faketime_environment
from tests.nodes.support import until


def clock_environment(binary: str) -> dict[str, str]:
    """Return the environment in which a server's wall clock can be stepped.

    Where the library is missing or does not work, skip here and fail in CI.
    """
    try:
        return faketime_environment(binary)
    except ClockError as error:
        missing(str(error))


class Clocks:
    """The wall clocks of running nodes; each can be stepped on its own."""

    def __init__(self, nodes: DevNodes, clocks: list[Clock]) -> None:
        self.nodes = nodes
        self._clocks = clocks

    def step(self, index: int, seconds: float) -> None:
        """Set the wall clock of a node to this distance from the real time."""
        node = self.nodes.nodes[index]
        self._clocks[index].set(seconds)

        def has_stepped() -> bool:
            skew = int(node.command("TIME")[0]) - time.time() - seconds
            return abs(skew) < 5

        until(has_stepped, what="the clock to be stepped")
