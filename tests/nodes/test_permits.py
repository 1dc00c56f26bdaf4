"""Permits on real servers: at most so many holders, also of processes that die."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.journal import whole_lines
from tests.nodes.support import (
    children,
    failing,
    until,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from celery_redlock.devnodes import DevNodes

TTL, LIMIT = 3.0, 3
ENOUGH = 20  # stays

# Holds permits again and again, and appends a line for each: when it began and ended,
# by the one clock of this machine, the fence, and the permit.
HOLDER = """
import os, sys, time
from celery_redlock.locks.redlock import Redlock
from celery_redlock.errors import RedlockError
from celery_redlock.locking import lock
key, path, *urls = sys.argv[1:]
redlock = Redlock(urls, ttl=3.0, max_ttl=3.0, node_timeout=0.5)
record = os.open(path, os.O_WRONLY | os.O_APPEND)
while redlock.check().ballot.answered < 2:
    pass
print("ready", flush=True)
while True:
    try:
        with lock(redlock, key, limit=3, wait=20) as lease:
            began = time.monotonic()
            time.sleep(0.01)  # the work of a body
            ended = time.monotonic()
            if lease.is_valid():
                line = f"{began} {ended} {lease.fence} {lease.key}\\n"
                os.write(record, line.encode())
    except RedlockError:
        pass
"""


@pytest.mark.timeout(180)
def test_processes_that_die_and_freeze_share_three_permits(
    start_nodes: Callable[..., DevNodes], key: str, tmp_path: Path
) -> None:
    """No more than three of six hold one at once, and one ttl later none is left.

    One process is killed and one is stopped, each perhaps with a permit. Then a node
    dies and comes back empty.
    """
    three_nodes = start_nodes(3, max_ttl=TTL)
    record = tmp_path / "stays"
    record.touch()

    def stays() -> list[tuple[float, float, int, str]]:
        lines = [line.split() for line in whole_lines(record)]
        return [(float(a), float(b), int(fence), name) for a, b, fence, name in lines]

    def until_more() -> None:
        wanted = len(stays()) + ENOUGH
        until(lambda: len(stays()) >= wanted, 60.0)

    with children(6, HOLDER, key, str(record), *three_nodes.urls) as holders:
        try:
            until_more()
            holders[0].process.kill()
            holders[1].process.send_signal(signal.SIGSTOP)
            until_more()
            holders[1].process.send_signal(signal.SIGCONT)
            with failing(three_nodes.nodes[:1], "dead"):
                until_more()
        finally:
            for holder in holders:
                holder.process.kill()
    until_nothing_is_left(three_nodes, key, 4 * TTL)

    found = stays()
    at_once = 0
    for _, change in sorted(
        [(began, 1) for began, *_ in found] + [(end, -1) for _, end, *_ in found]
    ):
        at_once += change
        assert at_once <= LIMIT
    assert len({(fence, name) for *_, fence, name in found}) == len(found)
    assert len({name for *_, name in found}) == LIMIT
