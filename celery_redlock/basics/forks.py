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


@contextmanager
def forks_wait(seconds: float) -> Iterator[None]:
    """Let a fork in another thread of this process wait for the end of the block.

    Args:
        seconds: How long it waits at most. After that the child is forked anyway, and
            may hang: choose more than the block ever needs, unless it waits for a
            server that may not answer.
    """
    block = object()
    _blocks[block] = threading.get_ident(), seconds
    try:
        yield
    finally:
        _blocks.pop(block, None)  # a fork inside the block has cleared the child's


def _wait_before_fork() -> None:
    if not _blocks:
        return
    here, begun = threading.get_ident(), SYSTEM_CLOCK.monotonic()

    def is_waited_for(thread: int, seconds: float) -> bool:
        return thread != here and SYSTEM_CLOCK.monotonic() < begun + seconds

    while any(is_waited_for(*block) for block in list(_blocks.values())):
        SYSTEM_CLOCK.sleep(_LOOK_EVERY)
    SYSTEM_CLOCK.sleep(_THREAD_ENDS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_before_fork, after_in_child=_blocks.clear)
