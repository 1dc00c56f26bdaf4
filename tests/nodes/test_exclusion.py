"""Mutual exclusion: one holder at a time, under faults, among processes and threads."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.errors import LockUnavailable
from celery_redlock.locking import lock
from tests.conftest import with_long
from tests.nodes.support import (
    MAX_TTL,
    SHORT,
    StartNodes,
    children,
    client,
    failing,
    meanwhile,
    proxied,
    run_threads,
    scripts_run,
    until,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.redlock import Redlock

ROUNDS = 30

# When a holder began, when it ended, and its fence.
Stay = tuple[float, float, int]


def assert_apart(stays: list[Stay]) -> None:
    """Assert that each stay began after the one before it, with a greater fence."""
    for (_, end, fence), (began, _, later) in itertools.pairwise(sorted(stays)):
        assert began >= end
        assert later > fence


# -- While nodes fail --------------------------------------------------------------


@contextlib.contextmanager
def contention(
    nodes: DevNodes | Sequence[str],
    count: int,
    work: Callable[[Redlock], None],
    **options: Any,
) -> Iterator[None]:
    """Let this many clients, each in a thread, do this again and again."""

    def try_to(work: Callable[[], None]) -> None:
        with contextlib.suppress(LockUnavailable):
            work()

    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(client(nodes, **options)) for _ in range(count)]
        with meanwhile(*[partial(try_to, partial(work, redlock)) for redlock in made]):
            yield


@pytest.mark.parametrize("seed", with_long(range(2), "1"))
@pytest.mark.long
def test_valid_leases_never_overlap_in_any_history(
    start_nodes: StartNodes, key: str, seed: int
) -> None:
    """While nodes hang, die and come back empty, there is one holder at a time."""
    nodes = start_nodes(5, max_ttl=1.0)
    chance = random.Random(seed)  # noqa: S311  (no secret)
    stays: list[Stay] = []

    def hold_for_a_while(redlock: Redlock) -> None:
        lease = redlock.acquire(key, wait=0.5)
        began = time.monotonic()
        while lease.remaining() > 0.2 and chance.random() > 0.05:
            time.sleep(0.001)  # the work of a body
            if chance.random() < 0.05:
                redlock.extend(lease)
        ended = time.monotonic()  # before the look at the validity
        if lease.is_valid():
            stays.append((began, ended, lease.fence))
        redlock.release(lease)

    short = {"ttl": 1.0, "max_ttl": 1.0, "node_timeout": 0.1}
    with contention(nodes, 5, hold_for_a_while, **short):
        for _ in range(25):
            way, longest = ("dead", 0.1) if chance.random() < 0.3 else ("hung", 0.3)
            with failing([chance.choice(nodes.nodes)], way):
                time.sleep(chance.uniform(0, longest))  # the length of the fault
        until(lambda: len(stays) > 5)  # else it shows nothing

    assert_apart(stays)
    until_nothing_is_left(nodes)


@pytest.mark.parametrize("seed", with_long(range(2), "1"))
def test_fences_grow_while_one_node_at_a_time_fails(
    start_nodes: StartNodes, key: str, seed: int
) -> None:
    """Under kills, restarts and partitions no fence repeats or is out of order."""
    nodes = start_nodes(5, initialize=False)
    chance = random.Random(seed)  # noqa: S311  (no secret)
    grants: list[Stay] = []

    def note_grant(redlock: Redlock) -> None:
        lease = redlock.acquire(key, wait=0.3)
        granted_at = redlock.clock.monotonic()
        grants.append((lease.started_at, granted_at, lease.fence))
        redlock.release(lease)

    with proxied(nodes, **SHORT) as (lines, _):
        urls = [line.url for line in lines]
        with contention(urls, 4, note_grant, **SHORT):
            for _ in range(20):
                line = chance.choice(lines)
                node = line.target
                begin, end = chance.choice(
                    [
                        (line.hold, line.resume),
                        (line.hold_replies, line.resume),
                        (line.cut, line.mend),
                        (node.pause, node.resume),
                        (node.kill, node.restart),
                    ]
                )
                begin()
                time.sleep(chance.uniform(0, 0.2))  # the length of the fault
                end()
                time.sleep(chance.uniform(0, 0.1))
            until(lambda: len(grants) > 30, 60.0)  # else it shows nothing

    fences = [fence for _, _, fence in grants]
    assert len(set(fences)) == len(fences)
    assert_ordered(grants)


def assert_ordered(grants: list[Stay]) -> None:
    """Assert that a grant that began after another one has the greater fence."""
    by_end = sorted(grants, key=lambda grant: grant[1])
    greatest = list(itertools.accumulate((fence for _, _, fence in by_end), max))
    ends = [granted_at for _, granted_at, _ in by_end]
    for started_at, _, fence in grants:
        over_before = sum(end < started_at for end in ends)
        if over_before:
            assert fence > greatest[over_before - 1]


@pytest.mark.parametrize("victims", [1, 3], ids=["one", "all"])
@pytest.mark.long
def test_node_wiped_over_and_over_admits_no_second_holder(
    start_nodes: StartNodes, key: str, victims: int
) -> None:
    """While a lock is contended, nodes are flushed again and again: one holder only."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    stays: list[Stay] = []

    def hold(redlock: Redlock) -> None:
        lease = redlock.acquire(key, wait=0.2)
        began = time.monotonic()
        time.sleep(0.005)  # the work of a body
        ended = time.monotonic()
        if lease.is_valid():
            stays.append((began, ended, lease.fence))
        redlock.release(lease)

    with contention(nodes, 4, hold, **SHORT):
        until(lambda: len(stays) > 5)
        for number in range(60):
            nodes.nodes[number % victims].command("FLUSHALL")
            time.sleep(0.02)  # so that some recover in between
        wiped_until = time.monotonic()
        until(lambda: stays[-1][0] > wiped_until + 0.1, seconds=20)

    assert_apart(stays)
    until_nothing_is_left(nodes)


# -- Processes ---------------------------------------------------------------------

# Takes part in one round for each line "key instant". It holds a lock that it won until
# the next line.
CONTENDER = """
import sys, time
from celery_redlock.locks.redlock import Redlock
from celery_redlock.errors import LockUnavailable
redlock = Redlock(sys.argv[1:], node_timeout=2.0, ttl=30)
while redlock.check().ballot.answered < 2:
    pass
print("ready", flush=True)
lease = None
for line in sys.stdin:
    if lease:
        redlock.release(lease)
        lease = None
    key, instant = line.split()
    while time.monotonic() < float(instant):
        pass
    try:
        lease = redlock.acquire(key)
        print("won", flush=True)
    except LockUnavailable as error:
        print(type(error).__name__, flush=True)
if lease:
    redlock.release(lease)
"""


@pytest.mark.every_server
@pytest.mark.timeout(180)
def test_six_contenders_have_one_winner(three_nodes: DevNodes, key: str) -> None:
    """Six processes on three nodes, one of them down: one winner each round."""
    three_nodes.nodes[2].kill()
    outcomes: Counter[str] = Counter()
    with children(6, CONTENDER, *three_nodes.urls) as contenders:
        for number in range(ROUNDS):
            instant = time.monotonic() + 0.005
            for contender in contenders:
                contender.write(f"{key}:{number} {instant}")
            words = [contender.read() for contender in contenders]
            assert words.count("won") == 1, words
            outcomes.update(words)
    assert set(outcomes) <= {"won", "LockHeld", "LockContended"}
    assert outcomes["won"] == ROUNDS
    until_nothing_is_left(three_nodes)


# Prints the fence of a lock that it takes after it has read a line.
PAUSED = """
import sys
from celery_redlock.locks.redlock import Redlock
key, *urls = sys.argv[1:]
redlock = Redlock(urls, ttl=1.0, node_timeout=0.33)
redlock.release(redlock.acquire(key + ":before", wait=20))
print("ready", flush=True)
sys.stdin.readline()
lease = redlock.acquire(key, wait=40)
print(lease.fence, flush=True)
redlock.release(lease)
"""


def test_votes_that_are_read_after_the_ttl_are_no_lock(
    three_nodes: DevNodes, key: str
) -> None:
    """A client that is stopped for longer than the ttl while it gets votes tries again.

    Source: node-redlock #296, #299; Redisson #624.
    """
    with (
        proxied(three_nodes) as (lines, rival),
        children(1, PAUSED, key, *(line.url for line in lines)) as (child,),
    ):
        for line in lines:
            line.hold_replies()
        child.write("go on")
        until(lambda: values(three_nodes, key).count(None) < 2)
        child.process.send_signal(signal.SIGSTOP)
        for line in lines:
            line.resume()  # granted, granted, granted
        until_nothing_is_left(three_nodes, key)
        lease = rival.acquire(key)
        before = scripts_run(three_nodes)

        child.process.send_signal(signal.SIGCONT)

        until(lambda: scripts_run(three_nodes) > before)
        rival.confirm(lease)
        assert child.process.poll() is None
        rival.release(lease)
        assert int(child.read()) > lease.fence
    until_nothing_is_left(three_nodes, key)


# -- Threads of one service --------------------------------------------------------


@dataclass
class Tally:
    """A counter that loses increments unless they are made one at a time."""

    amount: int = 0
    inside: int = 0
    overlaps: int = 0

    def increment(self) -> None:
        """Read, work, write."""
        self.inside += 1
        self.overlaps += self.inside > 1
        amount = self.amount
        time.sleep(0.0002)  # the work of a body
        self.amount = amount + 1
        self.inside -= 1


@pytest.mark.parametrize("keys", with_long([1, 3], "3"))
def test_threads_of_one_service_take_turns(
    three_nodes: DevNodes, key: str, keys: int
) -> None:
    """Eight threads of one `Redlock` increment counters and lose no increment.

    Interleaved replies on one connection reach the right threads.
    """
    tallies = [Tally() for _ in range(keys)]
    made: Counter[int] = Counter()
    with client(three_nodes, node_timeout=1.0) as redlock:

        def work(seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311  (no secret)
            for _ in range(30):
                number = chance.randrange(keys)
                with lock(redlock, f"{key}:{number}", wait=60) as lease:
                    assert lease.key == f"{key}:{number}"
                    holder = redlock.inspect(lease.key).holder
                    assert holder
                    assert holder.token == lease.token
                    tallies[number].increment()
                    made[number] += 1

        run_threads(*[partial(work, seed) for seed in range(8)])
    assert sum(made.values()) == 8 * 30
    assert [tally.amount for tally in tallies] == [made[n] for n in range(keys)]
    assert not any(tally.overlaps for tally in tallies)
    until_nothing_is_left(three_nodes)
