"""Many processes that want one lock: exactly one has it, and somebody always does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.nodes.support import PATIENT, run_python, until_nothing_is_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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


# -- Forked ------------------------------------------------------------------------


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
            time.sleep(0.0003)          # stands for the work of the body
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
