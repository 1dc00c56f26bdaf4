"""Many who want the same lock: exactly one has it, and somebody always does."""

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
from tests.nodes.support import (
    PATIENT,
    client,
    run_python,
    until_nothing_is_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

ROUNDS = 200

# Takes part in one round for each line "key instant", and keeps what it won until
# the next line.
CONTENDER = """
import sys, time
from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import LockUnavailable
redlock = Redlock(sys.argv[2:], node_timeout=float(sys.argv[1]), ttl=30)
redlock.check()
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
    """A process that tries what it is told to try."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603  (the program above)
            [sys.executable, "-c", CONTENDER, str(PATIENT), *urls],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def contenders(count: int, urls: Sequence[str]) -> Iterator[list[Contender]]:
    """Give so many processes that are ready to contend."""
    everybody = [Contender(urls) for _ in range(count)]
    try:
        for contender in everybody:
            assert contender.hear() == "ready"
        yield everybody
    finally:
        for contender in everybody:
            contender.process.stdin.close()  # type: ignore[union-attr]
            with contextlib.suppress(subprocess.TimeoutExpired):
                contender.process.wait(10)
            contender.process.kill()
            contender.process.wait()
            contender.process.stdout.close()  # type: ignore[union-attr]


# -- Processes -----------------------------------------------------------------------


@pytest.mark.every_server
@pytest.mark.timeout(180)
def test_six_contenders_have_one_winner(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Six processes on three nodes, one of them down: 200 rounds, one winner each."""
    nodes = start_nodes(3)
    nodes.nodes[2].kill()
    outcomes: Counter[str] = Counter()
    fences = []
    with contenders(6, nodes.urls) as everybody:
        for number in range(ROUNDS):
            instant = time.monotonic() + 0.005
            for contender in everybody:
                contender.tell(f"{key}:{number} {instant}")
            said = [contender.hear().split() for contender in everybody]
            assert [word for word, _ in said].count("won") == 1, said
            outcomes.update(word for word, _ in said)
            fences += [int(fence) for word, fence in said if word == "won"]
    assert set(outcomes) <= {"won", "LockHeld", "LockContended"}
    assert len(fences) == ROUNDS
    until_nothing_is_left(nodes)


def test_one_key_is_handed_from_winner_to_winner(
    three_nodes: DevNodes, key: str
) -> None:
    """The same key round after round: its fences only grow."""
    fences = []
    with contenders(4, three_nodes.urls) as everybody:
        for _ in range(60):
            instant = time.monotonic() + 0.01  # who won before lets go within that
            for contender in everybody:
                contender.tell(f"{key} {instant}")
            said = [contender.hear().split() for contender in everybody]
            won = [int(fence) for word, fence in said if word == "won"]
            assert len(won) <= 1, said
            fences += won
    assert len(fences) > 30
    assert fences == sorted(set(fences))


# -- Threads -------------------------------------------------------------------------


class Till:
    """A counter that loses increments unless one at a time makes them."""

    def __init__(self) -> None:
        self.amount = 0
        self.inside = 0
        self.overlaps = 0

    def increment(self, pause: float = 0.0002) -> None:
        """Read, dawdle, write."""
        self.inside += 1
        self.overlaps += self.inside > 1
        amount = self.amount
        time.sleep(pause)
        self.amount = amount + 1
        self.inside -= 1


def run_threads(*jobs: Callable[[], None]) -> None:
    """Run these at once, and raise what one of them raised."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  (raised again below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_share_one_service(three_nodes: DevNodes, key: str) -> None:
    """Eight threads on one `Redlock` increment a counter, none of it is lost."""
    till, each = Till(), 25
    with client(three_nodes, node_timeout=1.0) as redlock:

        def work() -> None:
            for _ in range(each):
                with lock(redlock, key, wait=60):
                    till.increment()

        run_threads(*[work] * 8)
    assert till.amount == 8 * each
    assert till.overlaps == 0
    until_nothing_is_left(three_nodes)


def test_threads_with_many_keys_do_not_mix_them_up(
    three_nodes: DevNodes, key: str
) -> None:
    """Replies that come interleaved over one connection reach who asked for them."""
    tills = [Till() for _ in range(3)]
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
                    tills[number].increment()
                    made[number] += 1

        run_threads(*[lambda seed=seed: work(seed) for seed in range(6)])
    assert [till.amount for till in tills] == [made[n] for n in range(3)]
    assert not any(till.overlaps for till in tills)


# -- Trouble -------------------------------------------------------------------------


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
        if lease.is_valid():
            self.stays.append((began, time.monotonic(), lease.fence))
        redlock.release(lease)

    def disturb(self) -> None:
        """Stop and kill nodes at random, one after the other."""
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
    room.stays.sort()
    for (_, end, fence), (began, _, later) in itertools.pairwise(room.stays):
        assert began >= end
        assert later > fence
    until_nothing_is_left(nodes)


def test_forked_children_count_together(three_nodes: DevNodes, key: str) -> None:
    """Children forked from one process with open connections exclude each other."""
    lines = run_python(FORKED, str(PATIENT * 5), key, *three_nodes.urls)

    assert lines == ["240 0"]
    until_nothing_is_left(three_nodes)


FORKED = """
import mmap, os, struct, sys, time
from celery_redlock.core.redlock import Redlock
from celery_redlock.locking import lock
timeout, key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=float(timeout))
memory = mmap.mmap(-1, 12)              # shared: amount, inside, overlaps
amount, inside, overlaps = (memoryview(memory)[i:i + 4].cast("i") for i in (0, 4, 8))

def work(times):
    for _ in range(times):
        with lock(redlock, key, wait=60):
            inside[0] += 1
            overlaps[0] += inside[0] > 1
            before = amount[0]
            time.sleep(0.0003)
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
