"""Forks that run no hook of this package, with connections to a store."""

from __future__ import annotations

import os

import pytest

from tests.nodes.support import WITHOUT_HOOK, run_python

PROGRAM = """
import os, sys
from celery_redlock import Redlock, lock
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
pids = fork(redlock, work, "ab")
work("parent")
print([os.waitpid(pid, 0)[1] for pid in pids])
assert redlock.extend(kept)
assert redlock.release(kept)
redlock.close()
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_child_notices_a_fork_that_runs_no_hook(store_url: str, key: str) -> None:
    """Parent and children read no reply of each other, and keep their own locks."""
    assert run_python(WITHOUT_HOOK + PROGRAM, key, store_url) == ["[0, 0]"]
