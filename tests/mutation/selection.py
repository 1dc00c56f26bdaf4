"""A pytest plugin: leave out what is long, or needs a server, and end what hangs.

Starting a server for each of a thousand mutants takes hours. So only the slow tests,
which judge the few mutants that the fast ones have left, may start one.

Some mutants loop for ever. A fast test fails when it has used ten seconds of the
processor: how busy the machine is does not matter.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

WITH_SERVERS = "REDLOCK_MUTATION_WITH_SERVERS"  # in the environment, if they may
_CPU_SECONDS = 10.0  # three times what the longest of the fast tests takes
_SERVERS = {"redis_server", "server", "shared_nodes", "start_nodes", "servers"}


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect these tests."""
    kept = [item for item in items if not _is_left_out(item)]
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Let no fixture loop for ever."""
    with limited():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Let no test loop for ever."""
    with limited():
        return (yield)


@contextmanager
def limited() -> Iterator[None]:
    """Raise an error in a block that takes too much time of the processor."""
    if os.environ.get(WITH_SERVERS):
        yield
        return
    before = signal.signal(signal.SIGPROF, _end_test)
    signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS, _CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _end_test(*_: object) -> None:
    pytest.fail(f"It took {_CPU_SECONDS:g} s of the processor.")


def _is_left_out(item: pytest.Item) -> bool:
    names = set(getattr(item, "fixturenames", ()))
    params = getattr(getattr(item, "callspec", None), "params", {})
    needs_server = names & _SERVERS or params.get("subject", "memory") != "memory"
    return bool(
        (needs_server and not os.environ.get(WITH_SERVERS))
        or item.get_closest_marker("long")
        or "fork" in item.name
    )
