"""Forks: a child has connections and a watchdog of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.devnodes import DevNodes
from tests.nodes.support import WITHOUT_HOOK, run_python, until_nothing_is_left

Run = Callable[..., list[str]]

PRELUDE = """
import os, sys, threading
from celery_redlock.locks.redlock import Redlock
from celery_redlock.errors import LockHeld
from celery_redlock.locking import lock, watchdog_of
from tests.harness.waiting import until
key, *urls = sys.argv[1:]

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


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_child_of_a_fork_in_c_shares_no_socket(run: Run) -> None:
    """No hook of Python runs, neither ours nor CPython's own.

    No other thread runs at that moment: CPython itself hangs in the child if one has
    a lock of it, or waits for that of the interpreter.
    """
    program = """
import _thread, ctypes

def sockets():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2:              # those may be sockets, too
            try:
                found.add(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                pass
    return {name for name in found if name.startswith("socket:")}

lease = redlock.acquire(key, ttl=30)
until(lambda: redlock.check().problems == [])      # all are connected
until(lambda: _thread._count() == 0)
before = sockets()
pid = ctypes.PyDLL(None).fork()          # this thread keeps the interpreter's lock
if not pid:
    code = 1
    try:
        assert not lease.is_valid() and not redlock.extend(lease)
        assert redlock.release(lease) == 0
        assert refused(key)
        with lock(redlock, f"{key}:child") as its:
            assert redlock.inspect(its.key).holder.token == its.token
        code = len(sockets() & before)
    finally:
        os._exit(code)
with lock(redlock, f"{key}:parent") as its:
    assert redlock.inspect(its.key).holder.token == its.token
status = os.waitpid(pid, 0)[1]
lease.ensure(network=True)
redlock.release(lease)
print(status, len(before) >= 3)
"""
    assert run(program) == ["0 True"]


@pytest.mark.long
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


def test_main_process_finds_the_locks_of_a_body_but_not_of_its_forks(run: Run) -> None:
    """A process that the body has forked may outlive it, and keeps its locks."""
    lines = run("""
from celery_redlock.locks.lease import Holder, new_base, note_body
from celery_redlock.operations.scan import locks_of

base = new_base()
note_body(base)
names = [f"{key}-{part}" for part in ("one", "two")]
leases = [redlock.acquire(name, ttl=30) for name in names]
other = Holder("", host="here", pid=1)
leases.append(redlock.acquire(f"{key}-fork", ttl=30, base=new_base(), holder=other))
note_body("")
leases.append(redlock.acquire(f"{key}-later", ttl=30))
found = locks_of(redlock, base, os.getpid())
print(sorted(found) == sorted(names))
for lease in leases:
    redlock.release(lease)
""")

    assert lines == ["True"]
