"""A holder in a process of its own, which can be paused: run as a program.

It takes the lock and prints its fence. For every line of its input it writes the row
under that fence and prints the result. It never checks whether it still holds the lock:
no check is at the very moment in which a database writes.
"""

from __future__ import annotations

import json
import sys

from celery_redlock.errors import LockLost, StaleFence
from celery_redlock.locking import lock
from celery_redlock.locks.redlock import Redlock
from tests.contrib.storages import open_storage


def say(**what: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(what), flush=True)  # noqa: T201  (it is a program)


def main(orm: str, url: str, pk: str, key: str, ttl: str, *nodes: str) -> None:
    """Hold the lock while there is input."""
    storage = open_storage(orm, url)
    try:
        with lock(Redlock(nodes, node_timeout=0.6), key, ttl=float(ttl)) as lease:
            draft = storage.load(int(pk))
            say(fence=lease.fence)
            for line in sys.stdin:
                try:
                    draft(line.strip(), lease)
                except StaleFence as error:
                    done = {"fence": error.fence, "latest": error.latest}
                    answer: dict[str, object] = {**done, "error": str(error)}
                else:
                    answer = {"written": line.strip(), "valid": lease.is_valid()}
                draft = storage.load(int(pk))
                # Last of all: a test may pause this process as soon as it has read
                # this, and a pause inside of `load` would keep SQLite locked.
                say(**answer)
    except LockLost:
        say(lost=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
