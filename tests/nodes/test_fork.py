"""Forks: a child has its own connections, leases and watchdog."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.nodes.support import WITHOUT_HOOK, run_python, until_nothing_is_left

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.devnodes import DevNodes

Run = Callable[..., list[str]]

PRELUDE = """
import os, sys, threading
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locking import current_lease, lock, watchdog_of
from tests.harness.waiting import until
key, *urls = sys.argv[1:]

def in_child(work):
    # Run a function in a child, which ends as programs do; return its exit code.
    pid = os.fork()
    if not pid:
        work()
        sys.stdout.flush()
        sys.exit(0)
    return os.waitpid(pid, 0)[1]

def refused(key):
    try:
        with lock(redlock, key):
            return False
    except LockHeld:
        return True

redlock = Redlock(urls, ttl=3, node_timeout=0.9)
"""


@pytest.fixture
def run(three_nodes: DevNodes, key: str) -> Iterator[Run]:
    """Give a function that runs a program and returns the lines that it printed."""

    def run(program: str, *, first: str = "") -> list[str]:
        return run_python(first + PRELUDE + program, key, *three_nodes.urls)

    yield run
    until_nothing_is_left(three_nodes)


def test_child_is_not_the_holder(run: Run) -> None:
    """A child that is forked in a block does not hold the lock: it is refused."""
    program = """
def work():
    assert current_lease() is None
    assert refused(key)
    print("child refused")

with lock(redlock, key) as lease:
    assert in_child(work) == 0
    assert lease.is_valid()
    lease.ensure(network=True)
    assert current_lease() is lease
    print("parent holds")
"""
    assert run(program) == ["child refused", "parent holds"]


def test_child_does_not_trust_the_lease_of_its_parent(run: Run) -> None:
    """Neither while the parent holds the lock nor when another client does."""
    program = """
def denied(lease, network):
    try:
        lease.ensure(network=network)
    except LockLost as error:
        return f"Process {os.getppid()} acquired" in str(error)

def work():
    os.read(read, 1)
    assert not lease.is_valid()
    assert denied(lease, False) and denied(lease, True)
    assert redlock.release(lease) == 0
    assert not redlock.extend(lease)

for is_held in (True, False):
    read, write = os.pipe()
    with lock(redlock, key) as lease:
        child = os.fork()
        if not child:
            work()
            os._exit(0)
        if is_held:
            os.write(write, b"x")
            assert os.waitpid(child, 0)[1] == 0
            lease.ensure(network=True)
            assert redlock.inspect(key).votes == len(urls)
    if not is_held:
        with lock(Redlock(urls, node_timeout=0.9), key, wait=5) as theirs:
            os.write(write, b"x")
            assert os.waitpid(child, 0)[1] == 0
            theirs.ensure(network=True)
print("denied")
"""
    assert run(program) == ["denied"]


def test_childs_exit_does_not_release_the_parents_lock(run: Run) -> None:
    """A child that leaves the parent's block ends neither the lock nor its renewal."""
    program = """
released = []
with lock(redlock, key, on_released=lambda _: released.append(os.getpid())) as lease:
    pid = os.fork()
    if not pid:
        sys.exit(0)                     # runs the end of the block, in the child
    assert os.waitpid(pid, 0)[1] == 0
    assert redlock.inspect(key).votes >= 2
    end = lease.until
    until(lambda: lease.until > end + 1.5)
    lease.ensure(network=True)
assert released == [os.getpid()]
print("held")
"""
    assert run(program) == ["held"]


def test_child_and_parent_do_not_share_connections(run: Run) -> None:
    """Both use the same service object at the same time, and get their own replies."""
    program = """
def work(name):
    for number in range(60):
        with lock(redlock, f"{key}:{name}:{number}") as lease:
            holder = redlock.inspect(lease.key).holder
            assert holder.token == lease.token, (holder, lease)
            assert holder.pid == os.getpid()

redlock.release(redlock.acquire(key))
pids = []
for name in "abc":
    pid = os.fork()
    if not pid:
        work(name)
        sys.exit(0)
    pids.append(pid)
work("parent")
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
print("apart")
"""
    assert run(program) == ["apart"]


@pytest.mark.long
def test_child_notices_a_fork_that_runs_no_hook(run: Run) -> None:
    """It has its own connections and watchdog, though a thread of its parent works.

    The fork is that of Python, without our hook. A fork by a C program, as that of
    uWSGI, would also copy the lock of the interpreter, and CPython hangs in the child
    if a thread waits for that lock at the moment of the fork.
    """
    program = """
over = False

def use():
    while not over:
        redlock.release(redlock.acquire(f"{key}:thread"))

def work(name):
    for number in range(15):
        with lock(redlock, f"{key}:{name}:{number}", wait=0.1) as lease:
            holder = redlock.inspect(lease.key).holder
            assert holder.token == lease.token, (holder, lease)
            assert holder.pid == os.getpid()
            assert watchdog_of(redlock)._watched.keys() == {lease.token}

with lock(redlock, key):
    assert refused(key) is False        # the same execution
thread = threading.Thread(target=use)
thread.start()
pids = fork(redlock, work, "abc")
work("parent")
print([os.waitpid(pid, 0)[1] for pid in pids])
over = True
thread.join()
"""
    assert run(program, first=WITHOUT_HOOK) == ["[0, 0, 0]"]


def test_forked_children_exclude_each_other(run: Run) -> None:
    """Children that were forked with open connections increment a counter together."""
    program = """
import mmap, time
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
    assert run(program) == ["240 0"]


def test_child_has_its_own_watchdog(run: Run) -> None:
    """A watchdog that a child starts renews no lease of the parent."""
    program = """
lease = redlock.acquire(key)
dog = Watchdog(redlock)
dog.watch(lease)

def work():
    dog.start()
    assert not dog.forget(lease)
    dog.renew_now(lease)
    mine, renewed = redlock.acquire(f"{key}:child"), []
    dog.watch(mine, on_renewed=lambda lease, late: renewed.append(lease.key))
    until(lambda: len(renewed) >= 2)
    assert set(renewed) == {mine.key}
    assert dog.forget(mine)
    redlock.release(mine)
    dog.stop()

end = lease.until
assert in_child(work) == 0
assert lease.until > end                # the parent's watchdog goes on
assert dog.forget(lease)
assert redlock.release(lease)
dog.stop()
print("each its own")
"""
    assert run(program) == ["each its own"]


def test_lock_of_a_dead_parent_ends_with_its_ttl(run: Run) -> None:
    """A child that survives does not keep the lock of its killed parent."""
    program = """
read, write = os.pipe()
parent = os.fork()
if not parent:
    with lock(redlock, key):            # the "parent": it forks and is killed
        child = os.fork()
        if not child:
            watchdog_of(redlock).start()
            with lock(redlock, f"{key}:child"):
                os.write(write, b"x")
                until(lambda: not refused(key))
                os.write(write, b"y")
            os._exit(0)
        os.waitpid(child, 0)
os.read(read, 1)
os.kill(parent, 9)
os.waitpid(parent, 0)
assert os.read(read, 1) == b"y"
print("ended")
"""
    assert run(program) == ["ended"]


def test_fork_while_other_threads_use_the_service(run: Run) -> None:
    """A child that is forked while a thread sends a request does not hang."""
    program = """
over = False

def use():
    while not over:
        redlock.release(redlock.acquire(f"{key}:thread"))

def work():
    for number in range(3):
        with lock(redlock, f"{key}:{os.getpid()}:{number}"):
            pass

thread = threading.Thread(target=use)
thread.start()
for _ in range(3):
    assert in_child(work) == 0
over = True
thread.join()
print("free")
"""
    assert run(program) == ["free"]
