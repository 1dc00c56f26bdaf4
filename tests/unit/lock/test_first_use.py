"""The first use of the package in a process, by several threads."""

from __future__ import annotations

from tests.nodes.support import run_python

# One thread is in the middle of the import of redis-py. Another one uses a node.
PROGRAM = """
import builtins, sys, threading, time
from celery_redlock.basics.secret import SecretUrl
from celery_redlock.wire.url import NodeAddress

at_a_part, may_go_on = threading.Event(), threading.Event()
errors = []

def stopping(name, globals=None, *others):
    if (globals or {}).get("__name__") == "redis" and not at_a_part.is_set():
        at_a_part.set()
        may_go_on.wait(30)
    return imported(name, globals, *others)

def importing():
    import redis

def using():
    NodeAddress("node", SecretUrl("redis://127.0.0.1:6379")).connection(1.0)

def start(do):
    def run():
        try:
            do()
        except BaseException as error:
            errors.append(repr(error))
    thread = threading.Thread(target=run)
    thread.start()
    return thread

def waits(thread):
    frame = sys._current_frames().get(thread.ident)
    return frame is None or frame.f_code.co_name == "acquire"

imported, builtins.__import__ = builtins.__import__, stopping
threads = [start(importing)]
at_a_part.wait(30)
threads.append(start(using))
give_up_at = time.monotonic() + 30
while not waits(threads[1]) and time.monotonic() < give_up_at:
    time.sleep(0.001)
may_go_on.set()
for thread in threads:
    thread.join()
print(errors)
"""


def test_threads_import_redis_in_one_order() -> None:
    """A thread that waits for redis-py keeps no part of it from another thread."""
    assert run_python(PROGRAM) == ["[]"]
