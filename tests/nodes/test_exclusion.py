"""Mutual exclusion: one holder at a time, under faults, among processes and threads."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockUnavailable
from celery_redlock.locking import lock
from tests.harness.tcp import proxies
from tests.nodes.support import (
    MAX_TTL,
    SHORT,
    client,
    run_python,
    run_threads,
    until,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

ROUNDS = 200

# When a holder began, when it ended, and its fence.
Stay = tuple[float, float, int]


def assert_apart(stays: list[Stay]) -> None:
    """Assert that each stay began after the one before it, with a greater fence."""
    for (_, end, fence), (began, _, later) in itertools.pairwise(sorted(stays)):
        assert began >= end
        assert later > fence


# -- While nodes fail --------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_valid_leases_never_overlap_in_any_history(
    start_nodes: Callable[..., DevNodes], key: str, seed: int
) -> None:
    """While nodes hang, die and come back empty, there is one holder at a time."""
    nodes = start_nodes(5, max_ttl=1.0)
    chance = random.Random(seed)  # noqa: S311  (no secret)
    over = threading.Event()
    stays: list[Stay] = []

    def work() -> None:
        short = {"ttl": 1.0, "max_ttl": 1.0, "node_timeout": 0.1}
        with client(nodes, **short) as redlock:
            while not over.is_set():
                with contextlib.suppress(LockUnavailable):
                    stays.extend(hold_for_a_while(redlock, key, chance, over))

    def disturb() -> None:
        try:
            for _ in range(25):
                node = chance.choice(nodes.nodes)
                if chance.random() < 0.3:
                    node.kill()
                    over.wait(chance.uniform(0, 0.1))
                    node.restart()
                else:
                    node.pause()
                    over.wait(chance.uniform(0, 0.3))
                    node.resume()
        finally:
            over.set()

    run_threads(disturb, *[work] * 5)

    assert len(stays) > 5
    assert_apart(stays)
    until_nothing_is_left(nodes)


def hold_for_a_while(
    redlock: Redlock, key: str, chance: random.Random, over: threading.Event
) -> list[Stay]:
    """Hold the lock for some milliseconds; return the stay if the lease is valid."""
    lease = redlock.acquire(key, wait=0.5)
    began = time.monotonic()
    while lease.remaining() > 0.2 and not over.wait(0.001):
        if chance.random() < 0.05:
            redlock.extend(lease)
        if chance.random() < 0.05:
            break
    ended = time.monotonic()  # before the look at the validity
    was_valid = lease.is_valid()
    redlock.release(lease)
    return [(began, ended, lease.fence)] if was_valid else []


@pytest.mark.parametrize("seed", range(2))
def test_fences_grow_while_one_node_at_a_time_fails(
    start_nodes: Callable[..., DevNodes], key: str, seed: int
) -> None:
    """Under kills, restarts and partitions no fence repeats or is out of order."""
    nodes = start_nodes(5, initialize=False)
    chance = random.Random(seed)  # noqa: S311  (no secret)
    over = threading.Event()
    grants: list[Stay] = []
    with proxies(nodes) as lines:
        urls = [line.url for line in lines]
        with client(urls, **SHORT) as redlock:
            redlock.initialize()

        def work() -> None:
            with client(urls, **SHORT) as redlock:
                while not over.is_set():
                    with contextlib.suppress(LockUnavailable):
                        lease = redlock.acquire(key, wait=0.3)
                        granted_at = redlock.clock.monotonic()
                        grants.append((lease.started_at, granted_at, lease.fence))
                        redlock.release(lease)

        def disturb() -> None:
            try:
                for _ in range(30):
                    line = chance.choice(lines)
                    node = line.target
                    faults: list[tuple[Callable[[], None], Callable[[], None]]] = [
                        (line.hold, line.resume),
                        (line.hold_replies, line.resume),
                        (line.cut, line.mend),
                        (node.pause, node.resume),
                        (node.kill, node.restart),
                    ]
                    begin, end = chance.choice(faults)
                    begin()
                    over.wait(chance.uniform(0, 0.2))
                    end()
                    over.wait(chance.uniform(0, 0.1))
            finally:
                over.set()

        run_threads(disturb, *[work] * 4)

    assert len(grants) > 30
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
def test_node_wiped_over_and_over_admits_no_second_holder(
    start_nodes: Callable[..., DevNodes], key: str, victims: int
) -> None:
    """While a lock is contended, nodes are flushed again and again: one holder only."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    over = threading.Event()
    stays: list[Stay] = []

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


# -- Processes ---------------------------------------------------------------------

# Takes part in one round for each line "key instant". It holds a lock that it won until
# the next line.
CONTENDER = """
import sys, time
from celery_redlock.core.redlock import Redlock
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
        print("won", lease.fence, flush=True)
    except LockUnavailable as error:
        print(type(error).__name__, 0, flush=True)
if lease:
    redlock.release(lease)
"""


class Contender:
    """A process that tries for a lock on request."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603  (the program above)
            [sys.executable, "-c", CONTENDER, *urls],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def write(self, line: str) -> None:
        """Send it a line."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Let it end, or kill it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=10)
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def contenders(count: int, urls: Sequence[str]) -> Iterator[list[Contender]]:
    """Give this many processes that are ready to contend."""
    made = [Contender(urls) for _ in range(count)]
    try:
        for contender in made:
            assert contender.read() == "ready"
        yield made
    finally:
        for contender in made:
            contender.end()


def contend(made: Sequence[Contender], key: str, seconds: float) -> list[list[str]]:
    """Let all processes try for the lock at one instant; return their outcomes."""
    instant = time.monotonic() + seconds
    for contender in made:
        contender.write(f"{key} {instant}")
    return [contender.read().split() for contender in made]


@pytest.mark.every_server
@pytest.mark.timeout(180)
def test_six_contenders_have_one_winner(three_nodes: DevNodes, key: str) -> None:
    """Six processes on three nodes, one of them down: 200 rounds, one winner each."""
    three_nodes.nodes[2].kill()
    outcomes: Counter[str] = Counter()
    fences = []
    with contenders(6, three_nodes.urls) as made:
        for number in range(ROUNDS):
            round_ = contend(made, f"{key}:{number}", 0.005)
            assert [word for word, _ in round_].count("won") == 1, round_
            outcomes.update(word for word, _ in round_)
            fences += [fence for word, fence in round_ if word == "won"]
    assert set(outcomes) <= {"won", "LockHeld", "LockContended"}
    assert len(fences) == ROUNDS
    until_nothing_is_left(three_nodes)


def test_lock_goes_from_winner_to_winner(three_nodes: DevNodes, key: str) -> None:
    """The fences of one key grow, round after round."""
    fences = []
    with contenders(4, three_nodes.urls) as made:
        for _ in range(60):
            round_ = contend(made, key, 0.01)  # the last winner releases before that
            won = [int(fence) for word, fence in round_ if word == "won"]
            assert len(won) <= 1, round_
            fences += won
    assert len(fences) > 30
    assert fences == sorted(set(fences))


def test_forked_children_exclude_each_other(three_nodes: DevNodes, key: str) -> None:
    """Children that were forked with open connections increment a counter together."""
    lines = run_python(FORKED, key, *three_nodes.urls)

    assert lines == ["240 0"]
    until_nothing_is_left(three_nodes)


FORKED = """
import mmap, os, struct, sys, time
from celery_redlock.core.redlock import Redlock
from celery_redlock.locking import lock
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=2.0)
memory = mmap.mmap(-1, 12)              # shared: amount, inside, overlaps
amount, inside, overlaps = (memoryview(memory)[i:i + 4].cast("i") for i in (0, 4, 8))

def work(times):
    for _ in range(times):
        with lock(redlock, key, wait=60):
            inside[0] += 1
            overlaps[0] += inside[0] > 1
            before = amount[0]
            time.sleep(0.0003)          # the work of the body
            amount[0] = before + 1
            inside[0] -= 1

work(20)                                # connections are open and in use by now
children = []
for _ in range(5):
    pid = os.fork()
    if not pid:
        try:
            work(40)
            os._exit(0)
        finally:
            os._exit(1)
    children.append(pid)
work(20)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
print(amount[0], overlaps[0])
"""


# -- Threads of one service --------------------------------------------------------


class Tally:
    """A counter that loses increments unless they are made one at a time."""

    def __init__(self) -> None:
        self.amount = 0
        self.inside = 0
        self.overlaps = 0

    def increment(self) -> None:
        """Read, work, write."""
        self.inside += 1
        self.overlaps += self.inside > 1
        amount = self.amount
        time.sleep(0.0002)  # the work of a body
        self.amount = amount + 1
        self.inside -= 1


def test_threads_of_one_service_take_turns(three_nodes: DevNodes, key: str) -> None:
    """Eight threads of one `Redlock` increment a counter and lose no increment."""
    tally, each = Tally(), 25
    with client(three_nodes, node_timeout=1.0) as redlock:

        def work() -> None:
            for _ in range(each):
                with lock(redlock, key, wait=60):
                    tally.increment()

        run_threads(*[work] * 8)
    assert tally.amount == 8 * each
    assert tally.overlaps == 0
    until_nothing_is_left(three_nodes)


def test_threads_with_many_keys_get_their_own_replies(
    three_nodes: DevNodes, key: str
) -> None:
    """Interleaved replies on one connection reach the right threads."""
    tallies = [Tally() for _ in range(3)]
    made: Counter[int] = Counter()
    with client(three_nodes, node_timeout=1.0) as redlock:

        def work(seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311  (no secret)
            for _ in range(40):
                number = chance.randrange(3)
                with lock(redlock, f"{key}:{number}", wait=60) as lease:
                    assert lease.key == f"{key}:{number}"
                    holder = redlock.inspect(lease.key).holder
                    assert holder
                    assert holder.token == lease.token
                    tallies[number].increment()
                    made[number] += 1

        run_threads(*[lambda seed=seed: work(seed) for seed in range(6)])
    assert [tally.amount for tally in tallies] == [made[n] for n in range(3)]
    assert not any(tally.overlaps for tally in tallies)
