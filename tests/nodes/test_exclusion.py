"""Whatever happens to nodes, two are never in, and fences only grow."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockUnavailable
from tests.nodes.lines import Wire, wires
from tests.nodes.support import (
    MAX_TTL,
    SHORT,
    client,
    run_threads,
    until,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes


class Room:
    """Something that one at a time may be in, and who has been in it."""

    def __init__(self, nodes: DevNodes, key: str, seed: int) -> None:
        self.nodes = nodes
        self.key = key
        self.chance = random.Random(seed)  # noqa: S311  (no secret)
        self.over = threading.Event()
        self.stays: list[tuple[float, float, int]] = []

    def visit(self) -> None:
        """Go in again and again, with a service of one's own."""
        short = {"ttl": 1.0, "max_ttl": 1.0, "node_timeout": 0.1}
        with client(self.nodes, **short) as redlock:
            while not self.over.is_set():
                with contextlib.suppress(LockUnavailable):
                    self._stay(redlock)

    def _stay(self, redlock: Redlock) -> None:
        lease = redlock.acquire(self.key, wait=0.5)
        began = time.monotonic()
        while lease.remaining() > 0.2 and not self.over.wait(0.001):
            if self.chance.random() < 0.05:
                redlock.extend(lease)
            if self.chance.random() < 0.05:
                break
        ended = time.monotonic()  # before it is asked: whoever is late was in no longer
        if lease.is_valid():
            self.stays.append((began, ended, lease.fence))
        redlock.release(lease)

    def disturb(self) -> None:
        """Stop and kill nodes at random, one after the other."""
        try:
            for _ in range(25):
                node = self.chance.choice(self.nodes.nodes)
                if self.chance.random() < 0.3:
                    node.kill()
                    self.over.wait(self.chance.uniform(0, 0.1))
                    node.restart()
                else:
                    node.pause()
                    self.over.wait(self.chance.uniform(0, 0.3))
                    node.resume()
        finally:
            self.over.set()


@pytest.mark.parametrize("seed", range(2))
def test_two_are_never_in_whatever_nodes_do(
    start_nodes: Callable[..., DevNodes], key: str, seed: int
) -> None:
    """While nodes hang, die and come back empty, valid leases never overlap."""
    nodes = start_nodes(5, max_ttl=1.0)
    room = Room(nodes, key, seed)

    run_threads(room.disturb, *[room.visit] * 5)

    assert len(room.stays) > 5
    assert_apart(room.stays)
    until_nothing_is_left(nodes)


def assert_apart(stays: list[tuple[float, float, int]]) -> None:
    """Assert that each began after the one before it, with a greater fence."""
    for (_, end, fence), (began, _, later) in itertools.pairwise(sorted(stays)):
        assert began >= end
        assert later > fence


class Trouble:
    """Does one thing after the other to nodes and lines, at random."""

    def __init__(self, lines: Sequence[Wire], seed: int) -> None:
        self.lines = lines
        self.chance = random.Random(seed)  # noqa: S311  (no secret)
        self.over = threading.Event()

    def run(self) -> None:
        """Make trouble until it is over, for one node at a time."""
        try:
            for _ in range(30):
                line = self.chance.choice(self.lines)
                node = line.target
                ways: list[tuple[Callable[[], None], Callable[[], None]]] = [
                    (line.hold, line.resume),
                    (line.hold_replies, line.resume),
                    (line.cut, line.mend),
                    (node.pause, node.resume),
                    (node.kill, node.restart),
                ]
                happen, end = self.chance.choice(ways)
                happen()
                self.over.wait(self.chance.uniform(0, 0.2))
                end()
                self.over.wait(self.chance.uniform(0, 0.1))
        finally:
            self.over.set()


@pytest.mark.parametrize("seed", range(2))
def test_fences_grow_whatever_one_node_at_a_time_does(
    start_nodes: Callable[..., DevNodes], key: str, seed: int
) -> None:
    """Kills, restarts, partitions: no fence comes twice, none is out of order."""
    nodes = start_nodes(5, initialize=False)
    grants: list[tuple[float, float, int]] = []
    with wires(nodes) as lines:
        urls = [line.url for line in lines]
        trouble = Trouble(lines, seed)
        with client(urls, **SHORT) as redlock:
            redlock.initialize()

        def work() -> None:
            with client(urls, **SHORT) as redlock:
                while not trouble.over.is_set():
                    with contextlib.suppress(LockUnavailable):
                        lease = redlock.acquire(key, wait=0.3)
                        granted_at = redlock.clock.monotonic()
                        grants.append((lease.started_at, granted_at, lease.fence))
                        redlock.release(lease)

        run_threads(trouble.run, *[work] * 4)

    assert len(grants) > 30
    fences = [fence for _, _, fence in grants]
    assert len(set(fences)) == len(fences)
    assert_ordered(grants)


def assert_ordered(grants: list[tuple[float, float, int]]) -> None:
    """Assert that what began after another was granted has the greater fence."""
    by_end = sorted(grants, key=lambda grant: grant[1])
    greatest = list(itertools.accumulate((fence for _, _, fence in by_end), max))
    ends = [granted_at for _, granted_at, _ in by_end]
    for started_at, _, fence in grants:
        over_before = sum(end < started_at for end in ends)
        if over_before:
            assert fence > greatest[over_before - 1]


@pytest.mark.parametrize("victims", [1, 3], ids=["one", "all"])
def test_node_wiped_over_and_over_admits_no_second_holder(
    start_nodes: Callable[..., DevNodes], key: str, victims: int
) -> None:
    """While a lock is contended, nodes forget again and again: leases never overlap."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    over = threading.Event()
    stays: list[tuple[float, float, int]] = []

    def work() -> None:
        with client(nodes, **SHORT) as redlock:
            while not over.is_set():
                with contextlib.suppress(LockUnavailable):
                    lease = redlock.acquire(key, wait=0.2)
                    began = time.monotonic()
                    over.wait(0.005)
                    ended = time.monotonic()
                    if lease.is_valid():
                        stays.append((began, ended, lease.fence))
                    redlock.release(lease)

    def wipe() -> None:
        try:
            until(lambda: len(stays) > 5)
            wipes = itertools.cycle(nodes.nodes[:victims])
            for _ in range(60):
                next(wipes).command("FLUSHALL")
                assert not over.wait(0.02)
            wiped_until = time.monotonic()
            until(lambda: stays[-1][0] > wiped_until + 0.1, seconds=20)
        finally:
            over.set()

    run_threads(wipe, *[work] * 4)

    assert_apart(stays)
    until_nothing_is_left(nodes)
