"""Stores under gevent and eventlet."""

from __future__ import annotations

import pytest

from tests.nodes.support import run_python

PATCHES = {
    "gevent": """
from gevent import monkey
monkey.patch_all()
""",
    "eventlet": """
import warnings
warnings.simplefilter("ignore")
import eventlet
eventlet.monkey_patch()
""",
}
PROGRAM = """
import sys
from celery_redlock.stores.zookeeper import ZooKeeper
store = ZooKeeper(sys.argv[1], 20.0)
for number in range(20):
    store.run([[b"SET", b"green-%d" % number, b"1"], [b"GET", b"green"]])
print(store._breaks)
store.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_connection_to_zookeeper_does_not_break(
    zookeeper_store: str, patch: str
) -> None:
    """Its driver waits for two sockets at a time, of which both may be ready."""
    assert run_python(patch + PROGRAM, zookeeper_store) == ["0"]
