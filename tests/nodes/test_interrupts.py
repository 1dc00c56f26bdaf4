"""Interrupts at random, and programs that end in a block or have no files left."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from celery_redlock import wire
from celery_redlock.devnodes import DevNodes
from celery_redlock.wire.broadcast import InFlight
from tests.conftest import with_long
from tests.harness.programs import end_of
from tests.harness.waiting import until
from tests.interruptions import Visit, counts_places
from tests.nodes.support import (
    ROOT,
    client,
    locks,
    run_python,
    until_all_vote,
    until_nothing_is_left,
    use,
)

MANY = 10_000
MOST = 12, 5  # files; threads: main, I/O, watchdog, listener, one that connects

PRELUDE = """
import asyncio, gc, json, logging, os, random, signal, sys, threading, time
mode, count, key, *urls = sys.argv[1:]
if mode == "greenlets":
    from gevent import monkey
    monkey.patch_all()
    import gevent
from celery_redlock import RedlockError, Redlock, alock, lock
from celery_redlock.wire.client import NodeClient
from celery_redlock.wire.url import parse_node
from tests.harness.programs import end_of
from tests.harness.waiting import until

logging.disable(logging.CRITICAL)
TTL = 3.0
SOON = 30.0  # a busy machine
redlock = Redlock(urls, ttl=TTL, node_timeout=0.9)
lost, rounds, over = [], [], []

class Interrupt(BaseException):
    pass

if mode == "greenlets":
    gevent.get_hub().NOT_ERROR += (Interrupt,)  # which it would print

def hold(number):
    with lock(redlock, f"{key}:held:{number}", wait=SOON) as lease:
        while not over:
            time.sleep(0.02)  # the work of the body
            if not lease.is_valid():
                lost.append(lease.key)
                return

def come_and_go():
    while not over:
        time.sleep(0.005)
        try:
            with lock(redlock, f"{key}:other", wait=1.0):
                rounds.append(1)
        except RedlockError:
            pass

def work(number):
    try:
        if number % 3 == 0:
            with lock(redlock, f"{key}:{number % 5}") as lease:
                redlock.extend(lease)
        elif number % 3 == 1:
            with lock(redlock, f"{key}:held:0", wait=0.02):
                pass
        else:
            with lock(redlock, [f"{key}:{number % 5}", f"{key}:b"], wait=0.05):
                pass
    except RedlockError:
        pass

async def awork(number):
    try:
        if number % 2:
            async with alock(redlock, f"{key}:held:0", wait=0.02):
                pass
        else:
            keys = [f"{key}:{number % 5}", f"{key}:b"]
            async with alock(redlock, keys, wait=0.05):
                await asyncio.sleep(0)
    except RedlockError:
        pass

def work_on(number):
    while True:
        work(number)
        number += 1

async def awork_on(number):
    while True:
        await awork(number)
        number += 1

def in_threads():
    def interrupt(*_):
        raise Interrupt
    signal.signal(signal.SIGALRM, interrupt)
    for number in range(int(count)):
        try:
            try:
                after = random.uniform(0.00003, 0.003)
                # And later again: a finaliser may have swallowed the first one.
                signal.setitimer(signal.ITIMER_REAL, after, 1.0)
                work_on(number)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            pass

def in_greenlets():
    for number in range(0, int(count), 10):
        group = [gevent.spawn(work_on, number + i) for i in range(10)]
        gevent.sleep(random.uniform(0.0001, 0.01))
        gevent.killall(group, exception=Interrupt)

async def in_coroutines():
    for number in range(0, int(count), 10):
        group = [asyncio.ensure_future(awork_on(number + i)) for i in range(10)]
        await asyncio.sleep(random.uniform(0.0001, 0.01))
        for one in group:
            one.cancel()
        await asyncio.gather(*group, return_exceptions=True)

with lock(redlock, f"{key}:warm", wait=SOON):
    pass
others = [threading.Thread(target=hold, args=(n,), daemon=True) for n in range(2)]
others.append(threading.Thread(target=come_and_go, daemon=True))
for thread in others:
    thread.start()
until(lambda: rounds)
if mode == "threads":
    in_threads()
elif mode == "greenlets":
    in_greenlets()
else:
    asyncio.run(in_coroutines())
gone_on = len(rounds)
until(lambda: len(rounds) > gone_on)
over.append(True)
for thread in others:
    thread.join(10)
stuck = [thread.name for thread in others if thread.is_alive()]
with lock(redlock, f"{key}:after", wait=SOON):
    pass
gc.collect()
clients = [NodeClient(parse_node(url), SOON) for url in urls]

def left():
    names = (f"redlock:lock:{key}*", f"redlock:line:{key}*")
    found = (keys for c in clients for name in names for keys, _ in c.scan(name))
    return [k for keys in found for k in keys]

try:
    until(lambda: not left(), TTL + 2.0)
except AssertionError:
    sys.exit(f"left: {left()}")
print(json.dumps({
    "lost": lost, "stuck": stuck, "waiters": len(redlock.listener._waiters),
    "queued": sum(map(len, redlock.transport._queue)),
    "descriptors": len(os.listdir("/proc/self/fd")) - 4 * len(urls),
    "threads": len(sys._current_frames()),
}))
sys.stdout.flush()
os._exit(0)
"""


def storm(
    urls: Sequence[str], key: str, mode: str, count: int, most: tuple[int, int] = MOST
) -> None:
    """Let this many interrupts hit callers, and see that nothing is left of them.

    Args:
        urls: The nodes.
        key: The name of the test.
        mode: Who is interrupted.
        count: How often.
        most: How many files and threads the process may have then.
    """
    arguments = (mode, str(count), key, *urls)
    (line,) = run_python(PRELUDE, *arguments, timeout=60 + count / 10)
    found: dict[str, Any] = json.loads(line)

    assert (found["lost"], found["stuck"]) == ([], [])
    assert (found["waiters"], found["queued"]) == (0, 0)
    assert found["descriptors"] < most[0]
    assert found["threads"] <= most[1]


MODES = ["threads", "greenlets", "coroutines"]


@pytest.mark.skipif(sys.platform != "linux", reason="it counts the files in /proc")
@pytest.mark.parametrize("count", with_long([200, MANY], str(MANY)))
@pytest.mark.parametrize("mode", with_long(MODES, *MODES[1:]))
def test_interrupts_leave_nothing_behind(
    three_nodes: DevNodes, key: str, mode: str, count: int
) -> None:
    """No lock, waiter, thread or descriptor; others of the process lose no lease."""
    storm(three_nodes.urls, key, mode, count)
    until_nothing_is_left(three_nodes, key)


# -- a lock in a signal handler --------------------------------------------------------

WIRE = str(Path(wire.__file__).parent)
EVERY = 11  # places, of about three hundred


@pytest.mark.long
@counts_places
def test_lock_in_a_handler_costs_the_interrupted_acquire_a_second_try(
    shared_nodes: DevNodes, key: str
) -> None:
    """A handler that takes a lock in the middle of a request closes the connections."""

    def is_idle() -> bool:
        transport: Any = redlock.transport
        return transport._exchange.driver is None and not transport._is_driven  # noqa: SLF001

    with client(shared_nodes, node_timeout=3.0) as redlock:
        until_all_vote(redlock)
        for at in itertools.count(1, EVERY):
            until(is_idle)  # then the caller itself sends and reads
            visit = Visit(at, WIRE, lambda: use(redlock, f"{key}-handler"))
            with visit:
                lease = redlock.acquire(key)
            assert lease.is_valid()
            redlock.release(lease)
            if not visit.was_raised:
                break


@counts_places
def test_lock_in_a_handler_costs_no_release_of_another_thread(
    shared_nodes: DevNodes, key: str
) -> None:
    """The interrupted driver takes nothing off the queue that others fill by then."""

    def is_free() -> bool:
        redlock.transport.drain()  # as the watchdog does
        return not locks(shared_nodes, key)

    with client(shared_nodes, node_timeout=3.0) as redlock:
        transport: Any = redlock.transport
        until_all_vote(redlock)
        for at in itertools.count(1, EVERY):
            until(lambda: transport._exchange.driver is None)  # noqa: SLF001
            other = redlock.acquire(f"{key}-other")
            request = redlock.release_request(
                other.key, other.token, since=other.started_at
            )
            release = InFlight((request,), 0.0, sends=True, waits=False)

            def use_and_release(release: InFlight = release) -> None:
                use(redlock, f"{key}-handler")
                # Another thread is about to send it.
                transport._queue.append(release)  # noqa: SLF001

            visit = Visit(at, WIRE, use_and_release)
            with visit:
                lease = redlock.acquire(key)
            redlock.release(lease)
            if not visit.was_raised:
                redlock.release(other)
                break
            until(is_free, 10.0)  # long before its ttl


# -- the end of a process --------------------------------------------------------------

START = """
import atexit, contextlib, sys, threading
from celery_redlock import Redlock, lock
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=1.0)

def rows():
    with lock(redlock, key):
        yield 1
        yield 2

def work():
    while True:
        with contextlib.suppress(Exception), lock(redlock, f"{key}:other"):
            pass
"""

# How a lock can still be entered when the interpreter ends.
SHAPES = {
    "generator": "rows_left = rows(); next(rows_left)",
    "stack": "left = contextlib.ExitStack(); left.enter_context(lock(redlock, key))",
    "global": "left = lock(redlock, key); left.__enter__()",
    "cycle": """
def leak():
    class Left:
        pass
    left = Left()
    left.itself = left
    left.block = lock(redlock, key)
    left.block.__enter__()
leak()
""",
    "atexit": """
left = lock(redlock, key)
left.__enter__()
atexit.register(left.__exit__, None, None, None)
""",
    "threads": """
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
left = lock(redlock, key)
left.__enter__()
""",
}

# Python does not leave these blocks: threads keep the module, and Python 3.10 closes no
# generator then. Their locks end with their ttl.
NEVER_CLOSED = {"threads", *(("generator",) if sys.version_info < (3, 11) else ())}


@pytest.mark.parametrize("shape", with_long(SHAPES, *[*SHAPES][1:-1]))
def test_process_ends_in_a_block(three_nodes: DevNodes, key: str, shape: str) -> None:
    """It does not hang and prints nothing, and no lock is left that Python closes."""
    program = START + SHAPES[shape]
    done = end_of(sys.executable, "-c", program, key, *three_nodes.urls, cwd=ROOT)

    assert (done.stdout, done.stderr) == ("", "")
    if shape not in NEVER_CLOSED:
        until_nothing_is_left(three_nodes, key)


# -- file descriptors ------------------------------------------------------------------

WITHOUT_FILES = """
import contextlib, os, resource, sys, threading
from celery_redlock import QuorumUnreachable, Redlock, lock
key, *urls = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
redlock = Redlock(urls, node_timeout=1.0)
files, ends = [], []

def take(seconds):
    try:
        with lock(redlock, key, wait=seconds):
            ends.append("held")
    except QuorumUnreachable as error:
        ends.append("Too many open files" in str(error))

with contextlib.suppress(OSError):
    while True:
        files.append(os.open(os.devnull, os.O_RDONLY))
threads = [threading.Thread(target=take, args=(n % 2 / 2,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for file in files:
    os.close(file)
take(20.0)
print(ends)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_first_use_without_file_descriptors_is_our_error(
    three_nodes: DevNodes, key: str
) -> None:
    """No call waits without an end, and the next one works when there are files."""
    (line,) = run_python(WITHOUT_FILES, key, *three_nodes.urls)

    assert line == "[True, True, True, True, 'held']"
