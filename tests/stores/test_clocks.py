"""A store ends a lock by its own clock: the clocks of clients may be wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_redlock.errors import LockHeld
from celery_redlock.locking import lock
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.doctor import diagnose
from celery_redlock.stores.connection import store_of
from tests.conftest import missing, with_long
from tests.harness.clocks import ClockError, faketime_environment
from tests.harness.programs import end_of

# Tries to take one lock, which is held, and takes another one for a minute.
CLIENT = """
import sys, time
from celery_redlock.locks.redlock import Redlock
from celery_redlock.errors import LockHeld
url, held, free = sys.argv[1:]
redlock = Redlock([url], ttl=60.0, node_timeout=15.0, connect_timeout=30.0)
try:
    redlock.acquire(held)
    print("taken")
except LockHeld:
    print("held")
redlock.acquire(free)
print(round(time.time()))
"""
HOUR = 3600
# Time-outs for a very busy machine.
PATIENT: dict[str, Any] = {"ttl": 60.0, "node_timeout": 15.0, "connect_timeout": 30.0}


@pytest.fixture
def run_at(store_url: str) -> Callable[..., list[str]]:
    """Give a function that runs the client with its wall clock set so far off."""
    try:
        environment = faketime_environment(sys.executable)
    except ClockError as error:
        missing(str(error))

    def run_at(seconds: int, *words: str) -> list[str]:
        command = sys.executable, "-c", CLIENT, store_url, *words
        variables = {**environment, "FAKETIME": f"{seconds:+}"}
        return end_of(*command, variables=variables).stdout.split()

    return run_at


@pytest.fixture
def redlock(store_url: str) -> Iterator[Redlock]:
    """Give a service with the right time."""
    with closing(Redlock([store_url], **PATIENT)) as redlock:
        yield redlock


@pytest.mark.parametrize("off", with_long([HOUR, -HOUR], f"{-HOUR}"))
def test_wrong_clock_of_a_client_ends_no_lock(
    redlock: Redlock, run_at: Callable[..., list[str]], off: int
) -> None:
    """It takes no lock that is held, and the lock that it takes has its whole ttl.

    Not one that is an hour too short or too long. By the time that a slow reply tells,
    a lock ends some seconds late.
    """
    held, free = f"held{off}", f"free{off}"
    with lock(redlock, held):
        said, wall = run_at(off, held, free)
    assert abs(int(wall) - redlock.clock.wall() - off) < HOUR / 2  # it was set
    assert said == "held"
    with pytest.raises(LockHeld) as caught:
        redlock.acquire(free)
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after < HOUR / 2


@pytest.mark.parametrize("off", [HOUR, -HOUR])
def test_sweep_of_a_client_with_a_wrong_clock_deletes_no_lock(
    store_url: str,
    redlock: Redlock,
    monkeypatch: pytest.MonkeyPatch,
    off: int,
) -> None:
    """Keys that ended are deleted now and then, by the clock of the store, too."""
    lease = redlock.acquire(f"kept{off}")
    right = redlock.clock.wall
    monkeypatch.setattr(type(redlock.clock), "wall", lambda *_: right() + off)
    store = store_of(store_url)
    module = sys.modules[store.__module__]
    monkeypatch.setattr(module, "_SWEEP_EVERY", 0.0)
    with closing(store(store_url, 8.0)) as sweeper:
        for _ in range(20):
            sweeper.run([[b"SET", b"clocks:other", b"x", b"PX", b"1000"]])
    assert redlock.extend(lease)
    assert redlock.release(lease) == 1


def test_doctor_finds_no_fault_in_a_right_clock(redlock: Redlock) -> None:
    """Whole seconds of etcd and rare looks of ZooKeeper prove nothing against it."""
    assert not [one.fact for one in diagnose(redlock) if "clock" in one.code]
