"""Each store does alone what nodes do together, on real servers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.election import Elector
from celery_redlock.errors import LockHeld, LockLost
from celery_redlock.locks import wait_queue
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.limits import wanted
from celery_redlock.locks.redlock import Redlock
from celery_redlock.records.standbys import leadership_of
from celery_redlock.scripts import keys
from celery_redlock.wire.client import NodeClient
from celery_redlock.wire.url import parse_node
from tests.harness.programs import end_of
from tests.harness.waiting import until

NEVER = 600.0  # seconds: longer than any test
SOON = 30.0
PATIENT = 8.0  # seconds, which a busy machine may take for 100 keys, or to connect

# Takes the lock again and again, and adds one to a number in a file under it.
WORKER = """
import sys
from celery_redlock.locks.redlock import Redlock
key, path, times, url = sys.argv[1:]
redlock = Redlock([url], node_timeout=5.0)
fences = []
for _ in range(int(times)):
    lease = redlock.acquire(key, wait=30.0)
    count = int(open(path).read())
    open(path, "w").write(str(count + 1))
    assert lease.is_valid()
    fences.append(f"{count}:{lease.fence}")
    redlock.release(lease)
redlock.close()
print(*fences)
"""


@pytest.fixture
def start(store_url: str) -> Iterator[Callable[..., Redlock]]:
    """Give a function that makes a service on the store, with its own connection."""
    with ExitStack() as stack:

        def start(node_timeout: float = 3.0) -> Redlock:
            redlock = Redlock(
                [store_url], node_timeout=node_timeout, connect_timeout=PATIENT
            )
            return stack.enter_context(closing(redlock))

        yield start


@pytest.fixture
def ours(start: Callable[[], Redlock]) -> Redlock:
    """Give a service."""
    return start()


@pytest.fixture
def theirs(start: Callable[[], Redlock]) -> Redlock:
    """Give another service."""
    return start()


def asked(url: str, *words: str) -> Any:
    """Send one command to a store, and return the reply."""
    return all_asked(url, [words])[0]


def all_asked(url: str, commands: Iterable[Sequence[str]]) -> list[Any]:
    """Send commands to a store, one after the other, and return the replies."""
    with NodeClient(parse_node(url), 5.0) as client:
        return [client.ask(words)[0] for words in commands]


def test_processes_hold_the_lock_one_after_another(
    store_url: str, key: str, tmp_path: Path
) -> None:
    """No addition is lost, and fences grow in the order of the additions."""
    path = tmp_path / "number"
    path.write_text("0")
    command = [sys.executable, "-c", WORKER, key, str(path), "10", store_url]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
        for _ in range(3)
    ]
    said = [worker.communicate()[0] for worker in workers]

    assert [worker.returncode for worker in workers] == [0] * 3
    assert path.read_text() == "30"
    pairs = [one.split(":") for one in " ".join(said).split()]
    fences = [int(fence) for _, fence in sorted(pairs, key=lambda pair: int(pair[0]))]
    assert fences == sorted(set(fences))


def test_lease_is_renewed_released_and_ends(
    ours: Redlock, theirs: Redlock, key: str
) -> None:
    """A lock that is not renewed ends with its ttl, and cannot be renewed any more."""
    lease = ours.acquire(key, ttl=10.0)
    assert ours.extend(lease)
    with pytest.raises(LockHeld) as refused:
        theirs.acquire(key)
    assert refused.value.holder.fence == lease.fence
    later = theirs.acquire(key, wait=SOON)
    assert not lease.is_valid()
    assert not ours.extend(lease)
    assert ours.release(lease) == 0
    assert later.is_valid()
    assert theirs.release(later) == 1
    with pytest.raises(LockLost):
        theirs.confirm(later)


def test_score_may_be_infinite(store_url: str, key: str) -> None:
    """As that of a call that expires never, or has expired before all others."""
    added = [("ZADD", key, "-inf", "first"), ("ZADD", key, "inf", "last")]
    found = all_asked(
        store_url,
        [
            *added,
            ("ZSCORE", key, "first"),
            ("ZSCORE", key, "last"),
            ("ZRANGEBYSCORE", key, "-inf", "1", "LIMIT", "0", "9"),
            ("DEL", key),
        ],
    )
    assert found == [1, 1, b"-inf", b"inf", [b"first"], 1]


def test_scan_finds_a_key_with_a_nul(store_url: str, key: str) -> None:
    """A pattern may end in one: after it, a store may look for any byte."""
    name = f"redlock:lock:{key}\0"
    all_asked(store_url, [("SET", f"{name}a", "x"), ("SET", f"{name[:-1]}b", "x")])
    try:
        with NodeClient(parse_node(store_url), 5.0) as client:
            found = [names for names, _ in client.scan(f"{name}*")]
    finally:
        all_asked(store_url, [("DEL", f"{name}a"), ("DEL", f"{name[:-1]}b")])

    assert found == [[f"{name}a".encode()]]


def test_release_wakes_a_waiter(
    store_url: str,
    ours: Redlock,
    theirs: Redlock,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A waiter that never looks by itself gets the lock when it is released."""
    monkeypatch.setattr(wait_queue, "_LEAST_LOOK_EVERY", NEVER)
    monkeypatch.setattr(wait_queue, "_LOOK_EVERY", NEVER)
    lease = ours.acquire(key, ttl=60.0)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(theirs.acquire, key, wait=NEVER)
        until(lambda: asked(store_url, "ZCARD", f"redlock:line:{key}"))
        ours.release(lease)
        later = waiter.result(timeout=SOON)
    assert theirs.release(later) == 1


def test_limit_of_two(start: Callable[[], Redlock], key: str) -> None:
    """Two of three get a permit, and the third when one is released."""
    name, limits = wanted(key, 2)
    clients = [start() for _ in range(3)]
    first, second = (one.acquire(name, limits=limits) for one in clients[:2])
    assert {first.key, second.key} == {f"{key}", f"{key}##2"}
    with pytest.raises(LockHeld):
        clients[2].acquire(name, limits=limits)
    clients[0].release(first)
    third = clients[2].acquire(name, limits=limits, wait=SOON)
    for redlock, lease in ((clients[1], second), (clients[2], third)):
        assert redlock.extend(lease)
        assert redlock.release(lease) == 1


def test_one_of_three_candidates_leads(start: Callable[[], Redlock], key: str) -> None:
    """When it resigns another one leads, with a greater number."""
    electors = [Elector(start(), key, ttl=30.0) for _ in range(3)]
    terms = [elector.campaign() for elector in electors]
    assert [bool(term) for term in terms] == [True, False, False]
    numbers = [terms[0].number]  # type: ignore[union-attr]
    electors[0].resign()
    until(lambda: [one for one in electors[1:] if one.campaign()])
    (leader,) = [elector for elector in electors[1:] if elector.term]
    numbers.append(leader.term.number)  # type: ignore[union-attr]
    assert numbers == sorted(set(numbers))
    leader.resign()


# Its last request reaches a store that is slow.
STANDBY = """
import os, sys, time
from celery import Celery
from celery_redlock.app.runtime import runtime_of
from celery_redlock.wire.store_connection import StoreConnection
from celery_redlock.election import Elector
app = Celery(broker="memory://")
app.conf.update(redlock_nodes=[sys.argv[1]], redlock_connect_timeout=8.0)
runtime = runtime_of(app)
elector = Elector(runtime.redlock, sys.argv[2], ttl=30.0)
assert elector.campaign() is None
runtime.redlock.inspect(sys.argv[2])  # after the entry, which waits for no reply
go_on = StoreConnection._go_on
StoreConnection._go_on = lambda self: (time.sleep(0.1), go_on(self))[1]
elector.resign()
"""
ENDS = {"program": "", "process of a pool": "runtime.stop(); os._exit(0)"}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_standby_that_ends_is_listed_no_longer(
    store_url: str, ours: Redlock, theirs: Redlock, key: str, end: str
) -> None:
    """The last request of a process is carried out, also if it waits for no reply."""
    ours.acquire(key)

    end_of(sys.executable, "-c", STANDBY + end, store_url, key)

    assert leadership_of(theirs, key).standbys == ()


def test_many_threads_contend(start: Callable[[], Redlock], key: str) -> None:
    """Threads of one service and of others never hold the lock together."""
    inside, fences = threading.Lock(), list[int]()
    clients = [start(), start()]

    def work(redlock: Redlock) -> None:
        for _ in range(3):
            lease: Lease = redlock.acquire(key, wait=SOON)
            assert inside.acquire(blocking=False), "two holders"
            fences.append(lease.fence or 0)
            inside.release()
            redlock.release(lease)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, one) for one in clients * 3]:
            done.result()
    assert len(fences) == 18
    assert fences == sorted(set(fences))


def test_as_many_keys_as_may_be(start: Callable[..., Redlock], key: str) -> None:
    """A client takes, renews and releases as many keys together as there may be."""
    ours, theirs = start(PATIENT), start(PATIENT)
    names = [f"{key}-{number}" for number in range(keys.MOST)]
    lease = ours.acquire(names)
    assert ours.extend(lease)
    with pytest.raises(LockHeld):
        theirs.acquire(names[-1])
    assert ours.release(lease) == 1
    later = theirs.acquire(names)
    assert later.fence is not None
    assert lease.fence is not None
    assert later.fence > lease.fence
    assert theirs.release(later) == 1


def test_release_of_as_many_keys_as_may_be_that_are_waited_for(
    store_url: str,
    start: Callable[..., Redlock],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiters that listen no more leave all queues, and one that listens is woken."""
    ours, theirs = start(PATIENT), start(PATIENT)
    monkeypatch.setattr(wait_queue, "_LEAST_LOOK_EVERY", NEVER)
    monkeypatch.setattr(wait_queue, "_LOOK_EVERY", NEVER)
    names = [f"{key}-{number}" for number in range(keys.MOST)]
    lines = [f"redlock:line:{name}" for name in names]
    lease = ours.acquire(names, ttl=60.0)
    all_asked(store_url, [("ZADD", line, "0", "gone/1") for line in lines])
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(theirs.acquire, names[-1], wait=NEVER)
        until(lambda: asked(store_url, "ZCARD", lines[-1]) == 2)
        assert ours.release(lease) == 1
        later = waiter.result(timeout=SOON)
    assert theirs.release(later) == 1
    assert all_asked(store_url, [("ZCARD", line) for line in lines]) == [0] * keys.MOST


def test_many_threads_with_a_key_each(ours: Redlock, key: str) -> None:
    """Threads that ask in the same moment are each granted their key."""
    together = threading.Barrier(48)

    def work(number: int) -> int:
        fences = []
        for _ in range(3):
            together.wait(SOON)
            lease = ours.acquire(f"{key}-{number}", wait=SOON)
            fences.append(lease.fence)
            assert ours.release(lease) == 1
        return len(set(fences))

    with ThreadPoolExecutor(48) as pool:
        assert list(pool.map(work, range(48))) == [3] * 48
