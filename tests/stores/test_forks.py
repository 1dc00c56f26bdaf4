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


UNTAKEN = """
import gc, os, sys
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.wire.connector import Connector
from celery_redlock.wire.url import parse_node

connector = Connector(parse_node(sys.argv[1]), clock=SYSTEM_CLOCK, timeout=8.0)
connector.begin()
while connector.is_busy:
    SYSTEM_CLOCK.sleep(0.01)
ends = []
for way in ("forgotten", "dropped"):
    child = os.fork()
    if not child:
        store = type(connector._attempt.result._store)
        store.close = lambda _: os._exit(3)
        if way == "forgotten":
            connector.forget_parent()
        connector = None  # as where no hook of Python has run
        gc.collect()
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])
(info,) = connector.take().ask([["INFO"]])
print(ends, b"store:" in info)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_child_closes_no_connection_that_its_parent_has_just_made(
    store_url: str,
) -> None:
    """No request has used it yet.

    The end of a session with ZooKeeper waits for threads that the child does not have,
    and Celery kills a child that is not up within 4 s. The parent of one that closes a
    connection to PostgreSQL has lost its own.
    """
    assert run_python(UNTAKEN, store_url) == ["[0, 0] True"]
