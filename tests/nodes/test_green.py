"""Under gevent and eventlet, a greenlet that waits for a node blocks no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_redlock.devnodes import DevNodes
from tests.conftest import with_long
from tests.nodes.support import run_python, until_nothing_is_left

Run = Callable[[str], list[str]]

PATCHES = {
    "gevent": """
from gevent import monkey
monkey.patch_all()
from gevent import get_hub, spawn
def join(greenlet): return greenlet.get()
native = monkey.get_original("_thread", ["start_new_thread", "allocate_lock"])

def count_turns(note):
    watcher = get_hub().loop.prepare()
    watcher.start(note)
    return watcher
""",
    "eventlet": """
import warnings
warnings.simplefilter("ignore")
import eventlet
eventlet.monkey_patch()
from eventlet import hubs, spawn
def join(greenlet): return greenlet.wait()
thread = eventlet.patcher.original("_thread")
native = thread.start_new_thread, thread.allocate_lock

def count_turns(note):
    hub = hubs.get_hub()
    wait = hub.wait
    hub.wait = lambda seconds=None: (note(), wait(seconds))[1]
""",
}

PRELUDE = """
import os, signal, sys, time
from celery_redlock.locks.redlock import Redlock
from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
from celery_redlock.locking import current_lease, lock
from tests.harness.waiting import until
key, *urls = sys.argv[1:]
urls, pids = urls[:3], [int(pid) for pid in urls[3:]]   # pids: of two of the nodes
ticks = 0

def tick():
    global ticks
    while True:
        time.sleep(0.005)               # the work of another greenlet
        ticks += 1

spawn(tick)
"""


@pytest.fixture(params=with_long(PATCHES, "eventlet"))
def run(
    three_nodes: DevNodes, key: str, request: pytest.FixtureRequest
) -> Iterator[Run]:
    """Give a function that runs a program and returns the lines that it printed."""
    pids = [str(node.pid) for node in three_nodes.nodes[:2]]
    start = PATCHES[request.param] + PRELUDE
    yield lambda program: run_python(start + program, key, *three_nodes.urls, *pids)
    until_nothing_is_left(three_nodes)


def test_greenlets_take_turns(run: Run) -> None:
    """Greenlets of one service increment a counter and lose no increment."""
    program = """
redlock = Redlock(urls, node_timeout=1.0)
amount = inside = overlaps = 0

def work():
    global amount, inside, overlaps
    for _ in range(15):
        with lock(redlock, key, wait=60):
            inside += 1
            overlaps += inside > 1
            before = amount
            time.sleep(0.001)           # the work of the body
            amount = before + 1
            inside -= 1

for greenlet in [spawn(work) for _ in range(6)]:
    join(greenlet)
print(amount, overlaps)
"""
    assert run(program) == ["90 0"]


@pytest.mark.long
def test_greenlets_run_while_one_waits_for_hung_nodes(run: Run) -> None:
    """While a greenlet waits for hung nodes or for a lock, other greenlets run."""
    program = """
redlock = Redlock(urls, node_timeout=1.0)
with lock(redlock, key):
    try:
        before = ticks
        Redlock(urls, node_timeout=0.5).acquire(key, wait=1.0)
    except LockHeld:
        print("held", ticks - before > 20)
for pid in pids:
    os.kill(pid, signal.SIGSTOP)
try:
    before = ticks
    redlock.acquire(key)
except QuorumUnreachable:
    print("unreachable", ticks - before > 20)
finally:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
"""
    assert run(program) == ["held True", "unreachable True"]


def test_renewal_is_a_greenlet(run: Run) -> None:
    """The lock of a body that yields is renewed beyond its ttl, from its first use."""
    program = """
redlock = Redlock(urls, ttl=4.5, node_timeout=1.0)
renewals = []
with lock(redlock, key, on_renewed=lambda lease, late: renewals.append(late)) as lease:
    assert current_lease() is lease
    end, before = lease.until, ticks
    until(lambda: lease.until > end and len(renewals) >= 2, 30)
    print(lease.is_valid(), len(renewals) >= 2, ticks - before > 100)
assert current_lease() is None
"""
    assert run(program) == ["True True True"]


@pytest.mark.long
def test_loss_is_reported_in_a_greenlet(run: Run) -> None:
    """When a majority of the nodes dies, the loss is reported while the body waits."""
    program = """
redlock = Redlock(urls, ttl=1.5, node_timeout=0.2)
lost = []
try:
    with lock(redlock, key, on_lost=lost.append):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: lost)
except LockLost:
    print("lost", len(lost))
"""
    assert run(program) == ["lost 1"]


def test_sockets_that_are_ready_together_end_one_wait(run: Run) -> None:
    """The next wait of the greenlet lasts until what it waits for has come."""
    program = """
import selectors, socket
from celery_redlock.basics.selector import new_selector
pairs = [socket.socketpair() for _ in range(3)]
selector, later = new_selector(), new_selector()
for ours, _ in pairs[:2]:
    selector.register(ours, selectors.EVENT_READ)
later.register(pairs[2][0], selectors.EVENT_READ)

def send(*numbers):
    for number in numbers:
        pairs[number][1].send(b".")

def send_later():
    until(lambda: ticks > seen + 5)
    send(2)

spawn(send, 0, 1)
print(selector.select(20.0) != [])
seen = ticks
spawn(send_later)
print([key.fileobj is pairs[2][0] for key, _ in later.select(20.0)])
"""
    assert run(program) == ["True", "[True]"]


def test_thread_beside_the_greenlets_waits_by_a_loop_of_its_own(run: Run) -> None:
    """To use the loop of another thread would end the process, sooner or later."""
    program = """
import selectors, socket
from celery_redlock.basics.selector import new_selector
start_new_thread, allocate_lock = native
begun, ended = allocate_lock(), allocate_lock()
begun.acquire(), ended.acquire()
ours, theirs = socket.socketpair()
selector = new_selector()
selector.register(ours, selectors.EVENT_READ)
look = selector._ready

def look_and_tell():
    found = look()
    if begun.locked():
        begun.release()
    return found

def wait():
    print([key.fileobj is ours for key, _ in selector.select(3600.0)])
    ended.release()

selector._ready = look_and_tell
start_new_thread(wait, ())
begun.acquire()         # it has found nothing
theirs.send(b".")
print(ended.acquire(True, 10.0))    # the loop of this thread does not run meanwhile
"""
    assert run(program) == ["[True]", "True"]


@pytest.mark.long
def test_idle_process_does_nothing(run: Run) -> None:
    """Replies that no greenlet waits for do not keep the loop turning.

    The loop turns once or twice for each tick of another greenlet. With a reply that is
    watched and not read it turns thousands of times.
    """
    program = """
turns = 0

def note():
    global turns
    turns += 1

def turns_of_a_tick():
    begin, first = turns, ticks
    until(lambda: ticks >= first + 100)
    return (turns - begin) / 100

counter = count_turns(note)
redlock = Redlock(urls, node_timeout=1.0)
idle = {}
redlock.check()
idle["started"] = turns_of_a_tick()
with lock(redlock, key):
    idle["held"] = turns_of_a_tick()
    try:
        Redlock(urls, node_timeout=1.0).acquire(key)
    except LockHeld:
        idle["refused"] = turns_of_a_tick()
idle["released"] = turns_of_a_tick()
os.kill(pids[0], signal.SIGSTOP)
redlock.release(redlock.acquire(key))   # without the replies of one node
os.kill(pids[0], signal.SIGCONT)
idle["late"] = turns_of_a_tick()
redlock.release(redlock.acquire(key))
idle["back"] = turns_of_a_tick()
print({name: count for name, count in idle.items() if count > 20})
"""
    assert run(program) == ["{}"]


BEFORE = ["is built", "is used", "has ended its threads"]


@pytest.mark.long
@pytest.mark.parametrize("before", with_long(BEFORE, *BEFORE[::2]))
def test_service_from_before_the_patch_blocks_no_greenlet(
    three_nodes: DevNodes, key: str, before: str
) -> None:
    """Greenlets that rest or sleep for long do so on locks from after the patch."""
    program = """
import sys, threading, time, warnings
warnings.simplefilter("ignore")
from celery_redlock import Redlock, lock
from celery_redlock.locking import watchdog_of
from celery_redlock.locks import renewal_schedule
from celery_redlock.wire import broadcast
from tests.harness.waiting import until
before, key, *urls = sys.argv[1:]
broadcast._REST = renewal_schedule._LONGEST_SLEEP = 3600.0
redlock = Redlock(urls, ttl=4.5, node_timeout=1.0)
watchdog = watchdog_of(redlock)

def use(name):
    with lock(redlock, name, wait=20.0) as lease:
        time.sleep(0.01)
    return lease

if before != "is built":
    threads = [threading.Thread(target=use, args=(key,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
if before == "has ended its threads":
    redlock.close()
    watchdog.stop()
    until(lambda: not redlock.transport._thread)

from gevent import monkey
monkey.patch_all()
import gevent
gevent.joinall([gevent.spawn(use, key) for _ in range(4)], raise_error=True)
with lock(redlock, key) as lease:
    first_end = lease.until
    until(lambda: lease.until != first_end)
print("renewed")
"""
    assert run_python(program, before, key, *three_nodes.urls) == ["renewed"]
