"""Mutual exclusion: one holder at a time, among processes and among threads.

What it is worth while nodes die, hang and forget, `tests.simulation` and
`tests.torture` judge.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.locking import lock
from tests.conftest import with_long
from tests.nodes.support import (
    children,
    client,
    proxied,
    run_threads,
    scripts_run,
    until,
    until_nothing_is_left,
    values,
)

ROUNDS = 30

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
