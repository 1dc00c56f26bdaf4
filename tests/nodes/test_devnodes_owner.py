"""`DevNodes` never outlive the process that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from celery_redlock.devnodes import DevNodes
from tests.nodes.support import plain_client, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOON = 10.0  # seconds within which a process must have ended
OWNER = """
import os, sys, threading
from celery_redlock.devnodes import DevNodes
servers = DevNodes(2, binary=sys.argv[1], initialize=False)
servers.start()
servers.nodes[1].pause()
print(*(node.pid for node in servers.nodes), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def owner(redis_server: str, tmp_path: Path) -> Iterator[Callable[[str], Owner]]:
    """Give a function that starts a process which owns two servers, one paused."""
    started: list[Owner] = []

    def start(then: str) -> Owner:
        started.append(Owner(then, redis_server, str(tmp_path)))
        return started[-1]

    yield start
    for owner in started:
        owner.process.kill()
        owner.process.communicate()


class Owner:
    """A process that has started two servers, with what it does then."""

    def __init__(self, then: str, redis_server: str, folder: str) -> None:
        self.process = subprocess.Popen(  # noqa: S603  (the program above)
            [sys.executable, "-c", OWNER + then, redis_server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        pids = self.process.stdout.readline().split()
        self.servers = [psutil.Process(int(pid)) for pid in pids]
        assert len(self.servers) == 2
        self.process.stdin.write("they have been looked at\n")
        self.process.stdin.flush()

    def until_servers_end(self) -> None:
        """Wait until none of its servers does anything any more."""
        until(lambda: not any(map(alive, self.servers)), SOON, what="their end")


def alive(process: psutil.Process) -> bool:
    """Tell whether a process still does something, or could."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("then", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError", 1)],
    ids=["end", "exit", "exception"],
)
def test_servers_end_when_their_owner_ends(
    owner: Callable[[str], Owner], tmp_path: Path, then: str, code: int
) -> None:
    """Servers and their folders go when their owner ends without stopping them."""
    process = owner(then)

    assert process.process.wait(SOON) == code
    process.until_servers_end()
    assert list(tmp_path.iterdir()) == []


def test_servers_end_on_ctrl_c(owner: Callable[[str], Owner]) -> None:
    """Ctrl-C reaches the owner only; the servers end because the owner ends."""
    process = owner("sys.stdin.read()")
    assert all(os.getpgid(s.pid) == s.pid for s in process.servers)

    os.killpg(process.process.pid, signal.SIGINT)

    assert process.process.wait(SOON) == -signal.SIGINT
    process.until_servers_end()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_servers_end_when_their_owner_is_killed(
    owner: Callable[[str], Owner], name: str
) -> None:
    """However the owner is killed, no server is left, paused or not."""
    process = owner("sys.stdin.read()")

    process.process.send_signal(signal.Signals[name])

    process.until_servers_end()


def test_servers_survive_the_exit_of_a_fork(owner: Callable[[str], Owner]) -> None:
    """A forked child that exits does not stop its parent's servers."""
    process = owner(
        "pid = os.fork()\n"
        "if not pid: servers.stop(); sys.exit()\n"
        "os.waitpid(pid, 0)\n"
        "print(servers.nodes[0].command('PING'), bool(servers.nodes[1].log))"
    )

    assert process.process.communicate()[0].split() == ["True", "True"]
    process.until_servers_end()


def test_servers_survive_the_thread_that_started_them(redis_server: str) -> None:
    """Servers belong to the process, not to the thread that started them."""
    servers = DevNodes(1, binary=redis_server, initialize=False)
    thread = threading.Thread(target=servers.start)
    thread.start()
    thread.join()

    with servers:
        assert plain_client(servers.nodes[0]).ping()
