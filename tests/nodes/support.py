"""Helpers for tests on real servers: clients, the state of nodes, threads, programs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redlock.devnodes import DevNode, DevNodes
from celery_redlock.errors import QuorumUnreachable
from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from celery_redlock.wire.quorum import Ballot, VoteKind
from tests.harness.tcp import Proxy, proxies
from tests.harness.waiting import until

__all__ = ["until"]  # of the harness

ROOT = Path(__file__).parents[2]
StartNodes = Callable[..., DevNodes]  # the fixture `start_nodes`

PATIENT = 1.0  # seconds for a node to answer, also on a busy machine
BRIEF = 3.5 * PATIENT  # seconds: a ttl that this permits, and that a test can outwait

# The settings of a deployment whose quarantine a test can wait for. A busy machine may
# not answer so soon: see `granted` and `refusal`, which ask again.
MAX_TTL = 0.5  # seconds
QUARANTINE = 1.02 * MAX_TTL + 1

SHORT: dict[str, Any] = {"ttl": MAX_TTL, "max_ttl": MAX_TTL, "node_timeout": 0.15}

_services: list[Redlock] = []  # that `client` gives just now


@contextlib.contextmanager
def client(nodes: DevNodes | Sequence[Any], **options: Any) -> Iterator[Redlock]:
    """Give a service on these nodes and close it afterwards."""
    urls = nodes.urls if isinstance(nodes, DevNodes) else nodes
    redlock = Redlock(urls, **{"node_timeout": PATIENT, **options})
    _services.append(redlock)
    try:
        yield redlock
    finally:
        _services.remove(redlock)
        redlock.close()


@contextlib.contextmanager
def proxied(nodes: DevNodes, **options: Any) -> Iterator[tuple[list[Proxy], Redlock]]:
    """Give a proxy to each node, and a service that these nodes know by the proxies."""
    with (
        proxies(nodes) as lines,
        client([line.url for line in lines], **options) as redlock,
    ):
        initialize_anew(redlock, nodes)
        yield lines, redlock


def initialize_anew(redlock: Redlock, nodes: DevNodes) -> None:
    """Give nodes that a test has for itself to this service, with its settings."""
    for node in nodes.nodes:
        node.command("DEL", "redlock:meta")
    redlock.initialize()


def plain_client(node: DevNode, **options: Any) -> redis.Redis:
    """Return a client of redis-py for the URL of the node."""
    return redis.Redis.from_url(
        node.url, protocol=2, decode_responses=True, retry=None, **options
    )


def use(redlock: Redlock, key: str | Sequence[str]) -> None:
    """Acquire, renew and release a lock."""
    lease = redlock.acquire(key, wait=20)
    assert redlock.extend(lease)
    lease.ensure(network=True)
    assert redlock.release(lease)


def held(redlock: Redlock, nodes: DevNodes, key: str, **options: Any) -> Lease:
    """Acquire a lock, and wait until every running node has it."""
    lease = redlock.acquire(key, **options)

    def is_everywhere() -> bool:
        if None in values(nodes, key):
            redlock.extend(lease)  # a node that connects late gets the lock with it
        return None not in values(nodes, key)

    until(is_everywhere)
    return lease


def granted(redlock: Redlock, key: str) -> Lease:
    """Acquire a lock without a wait, but for nodes that are late to answer."""

    def attempt() -> Lease | None:
        try:
            return redlock.acquire(key)
        except QuorumUnreachable as error:
            if {*kinds(error.ballot)} <= {VoteKind.GRANTED, VoteKind.SILENT}:
                return None
            raise

    lease = until(attempt, what=f"an answer about {key!r}")
    assert lease
    return lease


def refusal(redlock: Redlock, key: str = "k", *, says: str = "") -> QuorumUnreachable:
    """Return the error of an acquire that too few nodes answer, when it says this."""

    def ask() -> QuorumUnreachable | None:
        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)
        return refused.value if says in str(refused.value) else None

    error = until(ask, what=f"an error that says {says!r}")
    assert error
    return error


def until_all_vote(redlock: Redlock, seconds: float = 10.0) -> None:
    """Wait until every node votes for this service."""
    until(lambda: redlock.check().problems == [], seconds, what="all nodes to vote")


# -- The state of nodes ------------------------------------------------------------


def _nodes(nodes: DevNodes | Sequence[DevNode]) -> Sequence[DevNode]:
    all_nodes = nodes.nodes if isinstance(nodes, DevNodes) else nodes
    return [node for node in all_nodes if node.is_running]


def values(nodes: DevNodes | Sequence[DevNode], key: str) -> list[str | None]:
    """Return the value of this lock on each running node."""
    return [node.command("GET", f"redlock:lock:{key}") for node in _nodes(nodes)]


def locks(nodes: DevNodes | Sequence[DevNode], key: str = "") -> list[str]:
    """Return the locks on the running nodes whose key contains this text."""
    pattern = f"*:lock:*{key}*"
    return [name for node in _nodes(nodes) for name in node.command("KEYS", pattern)]


def until_nothing_is_left(nodes: DevNodes | Sequence[DevNode], key: str = "") -> None:
    """Wait until no node has a lock whose key contains this text.

    Meanwhile each service of the test reads what comes, as its watchdog does: an answer
    that came too late for the request may be a reason to send a release again.
    """

    def is_so() -> bool:
        for redlock in [*_services]:
            redlock.transport.drain()
        return not locks(nodes, key)

    until(is_so, 15.0, what=f"no lock left of {key!r}")


def delete_lock(nodes: Sequence[DevNode], key: str) -> None:
    """Delete this lock on these nodes, as an operator might."""
    for node in nodes:
        node.command("DEL", f"redlock:lock:{key}")


@contextlib.contextmanager
def failing(nodes: Sequence[DevNode], way: str = "hung") -> Iterator[None]:
    """Let these nodes hang during the block, or be dead and come back empty."""
    for node in nodes:
        node.kill() if way == "dead" else node.pause()
    try:
        yield
    finally:
        for node in nodes:
            node.restart() if way == "dead" else node.resume()


def counters(node: DevNode) -> dict[str, int]:
    """Return the fence counters of a node."""
    found = node.command("HGETALL", "redlock:meta").items()
    return {f: int(n) for f, n in found if f == "floor" or f.isdigit()}


def scripts_run(nodes: DevNodes | Sequence[DevNode]) -> int:
    """Return the number of scripts that these nodes have run."""
    stats = [node.command("INFO", "commandstats") for node in _nodes(nodes)]
    names = ("cmdstat_evalsha", "cmdstat_eval")
    return sum(stat[name]["calls"] for stat in stats for name in names if name in stat)


def kinds(ballot: Ballot | None) -> list[VoteKind]:
    """Return the vote of each node; a node that did not answer in time was silent."""
    assert ballot is not None
    return [vote.kind if vote else VoteKind.SILENT for vote in ballot.votes]


# -- Threads and programs ----------------------------------------------------------


def run_threads(*jobs: Callable[[], None]) -> None:
    """Run the jobs at the same time, and raise the first error of a job."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
    for future in futures:
        future.result()


@contextlib.contextmanager
def meanwhile(*jobs: Callable[[], None]) -> Iterator[None]:
    """Repeat each job in its own thread until the end of the block.

    Then raise the first error of a job.
    """
    over = threading.Event()

    def repeat(job: Callable[[], None]) -> None:
        while not over.is_set():
            job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(repeat, job) for job in jobs]
        try:
            yield
        finally:
            over.set()
    for future in futures:
        future.result()


WITHOUT_HOOK = """
import os, sys, traceback
register_at_fork = os.register_at_fork

def register_others(**hooks):           # CPython and others need theirs in a child
    if not sys._getframe(1).f_globals["__name__"].startswith("celery_redlock"):
        register_at_fork(**hooks)

os.register_at_fork = register_others

def fork(redlock, work, names):          # the children work; return their ids
    return [child(redlock, work, name) for name in names]

def child(redlock, work, name):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        assert redlock.transport.pid == os.getppid()    # there was no hook
        work(name)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
"""
"""The first lines of a program whose forks run no hook of this package."""


def run_python(source: str, *args: str, timeout: float = 60.0) -> list[str]:
    """Run a program in its own process and return the lines that it printed.

    The program can import the helpers of the tests.

    Raises:
        AssertionError: The program failed, or did not end in time.
    """
    process = subprocess.Popen(  # noqa: S603  (a program of the tests)
        [sys.executable, "-c", source, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,  # a group of its own
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        if sys.platform == "win32":
            process.kill()
        else:  # also its children, which hold its pipes
            os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        raise AssertionError(f"it hung after\n{output}\n{errors}") from None
    assert process.returncode == 0, f"{output}\n{errors}"
    return output.splitlines()


class Child:
    """A Python program in its own process that reads and prints lines."""

    def __init__(self, source: str, *args: str, **options: Any) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(  # noqa: S603  (a program of the tests)
            [sys.executable, "-c", source, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
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


@contextlib.contextmanager
def children(count: int, source: str, *args: str) -> Iterator[list[Child]]:
    """Give this many processes that have printed "ready"; end them afterwards."""
    made = [Child(source, *args) for _ in range(count)]
    try:
        assert [child.read() for child in made] == ["ready"] * count
        yield made
    finally:
        for child in made:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.communicate(timeout=10)
            child.process.kill()
            child.process.communicate()
