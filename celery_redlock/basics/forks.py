"""Forks that wait for threads which use what a fork must not copy half-done.

A fork copies locks as they are and none of the threads that would release them: the
child would wait for ever where it needs one. Python renews its own, and this package
those of `basics.process`. Others cannot be renewed from outside: the lock of the C
library's resolver (resolv_conf.c of glibc), the lock of each ``cached_property`` of
kombu, such as the client of a result backend, and that of a module that is imported. So
a thread of a process that forks uses them in a block that forks wait for.

A worker does both at once where a process was killed: it forks another one, and a
thread releases the locks of the killed one, and may store its result.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_redlock.basics.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator


_LOOK_EVERY = 0.001  # seconds
_THREAD_ENDS = 0.001  # seconds, after its block: glibc locks its resolver there, too

# The blocks that are under way: their threads, and for how many seconds a fork waits.
_blocks: dict[object, tuple[int, float]] = {}
_forking: set[int] = set()  # threads


@contextmanager
def forks_wait(seconds: float) -> Iterator[None]:
    """Let a fork in another thread of this process wait for the end of the block.

    No block begins between the end of that wait and the fork. C programs that fork,
    such as uWSGI, wait for nothing.

    Args:
        seconds: How long a fork waits at most. After that the child is forked anyway,
            and may hang: choose more than the block ever needs, unless it waits for a
            server that may not answer.
    """
    here, block = threading.get_ident(), object()
    try:
        _blocks[block] = here, seconds
        # It is entered first and looks then; a fork does the same: one sees the other.
        while _forking and here not in _forking:
            del _blocks[block]
            SYSTEM_CLOCK.sleep(_LOOK_EVERY)
            _blocks[block] = here, seconds
        yield
    finally:
        _blocks.pop(block, None)  # a fork inside the block has cleared the child's


def _before_fork() -> None:
    here, begun = threading.get_ident(), SYSTEM_CLOCK.monotonic()

    def is_waited_for(thread: int, seconds: float) -> bool:
        return thread != here and SYSTEM_CLOCK.monotonic() < begun + seconds

    def must_wait() -> bool:
        return any(is_waited_for(*block) for block in list(_blocks.values()))

    has_waited = bool(_blocks)
    # Others may begin as long as it waits: a block may need one of another thread.
    while True:
        while must_wait():
            SYSTEM_CLOCK.sleep(_LOOK_EVERY)
        if has_waited:
            SYSTEM_CLOCK.sleep(_THREAD_ENDS)
        _forking.add(here)
        if not must_wait():
            return
        _forking.discard(here)  # one began in this moment
        has_waited = True


def _after_in_parent() -> None:
    _forking.discard(threading.get_ident())


def _after_in_child() -> None:
    _forking.clear()
    _blocks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_in_parent,
        after_in_child=_after_in_child,
    )
