"""Processes that fork without a hook of Python, with connections to a store."""

from __future__ import annotations

import sys

import pytest

from tests.nodes.support import run_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")

PROGRAM = """
import ctypes, os, signal, sys, threading
from celery_redlock import Redlock, lock
from tests.harness.waiting import until
key, url = sys.argv[1:]
redlock = Redlock([url], ttl=30, node_timeout=8.0, connect_timeout=8.0)

def work(name):
    for number in range(10):
        with lock(redlock, f"{key}:{name}:{number}", wait=0.1) as lease:
            holder = redlock.inspect(lease.key).holder
            assert (holder.token, holder.pid) == (lease.token, os.getpid())

with lock(redlock, key):                # its connections are open
    pass
kept = redlock.acquire(f"{key}:kept")

def are_idle():
    # A thread that wants the interpreter during such a fork stops the child for ever.
    own = threading.get_ident()
    others = [one for i, one in sys._current_frames().items() if i != own]
    return all(one.f_code.co_name == "select" for one in others)

pids = []
for name in "ab":
    until(are_idle)
    pid = ctypes.PyDLL(None).fork()     # unlike os.fork, it runs no hook
    if not pid:
        signal.alarm(40)                # in place of a hang
        code = 1
        try:
            work(name)
            code = 0
        finally:
            os._exit(code)
    pids.append(pid)
work("parent")
print([os.waitpid(pid, 0)[1] for pid in pids])
assert redlock.extend(kept)
assert redlock.release(kept)
redlock.close()
"""


@pytest.mark.long
def test_child_of_a_c_program_has_its_own_connections(
    postgresql_store: str, key: str
) -> None:
    """Parent and children read no reply of each other, and keep their own locks."""
    assert run_python(PROGRAM, key, postgresql_store) == ["[0, 0]"]
