"""The watchdog's thread: it starts and stops, and survives callbacks and the system."""

from __future__ import annotations

import errno
import logging
import selectors
from typing import TYPE_CHECKING, Any

from celery_redlock.core.address import parse_nodes
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.fanout import Fanout
from celery_redlock.core.lease import LeaseState
from celery_redlock.core.node import Node
from celery_redlock.core.timing import Timing
from tests.nodes.support import PATIENT, client, until
from tests.nodes.watching import BRIEF, Diary, watchdog

if TYPE_CHECKING:
    import pytest

    from celery_redlock.devnodes import DevNodes


def test_watchdog_stops_and_starts_twice(shared_nodes: DevNodes, key: str) -> None:
    """Stopped it renews nothing; started again it goes on with what it watches."""
    with client(shared_nodes, ttl=60) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        lease = redlock.acquire(key)
        dog.start()
        dog.start()
        dog.watch(lease, **diary.ears)
        dog.stop()
        dog.stop()
        dog.renew_now(lease)
        assert diary.renewals == []

        dog.start()

        until(lambda: diary.renewals)
        assert dog.forget(lease)
        redlock.release(lease)


def test_watchdog_survives_its_callbacks(
    shared_nodes: DevNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that raises is its author's problem: other leases are renewed on."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.ERROR)
    with client(shared_nodes, **BRIEF) as redlock, watchdog(redlock) as dog:
        diary = Diary(redlock)
        bad = redlock.acquire(f"{key}:bad")
        doomed = redlock.acquire(f"{key}:doomed")
        good = redlock.acquire(f"{key}:good")
        dog.watch(good, **diary.ears)
        dog.watch(bad, on_renewed=fail)
        dog.watch(doomed, on_lost=fail, renew=False)

        until(lambda: doomed.state is LeaseState.LOST)
        renewed = len(diary.renewals)
        until(lambda: len(diary.renewals) >= renewed + 3)

        assert good.is_valid()
        assert bad.is_valid()
        assert diary.losses == []
        assert dog.forget(good)
        assert dog.forget(bad)
    assert "ZeroDivisionError" in caplog.text


class FailingSelector(selectors.DefaultSelector):
    """Waits for sockets, except when it is told to fail."""

    failures = 0

    def select(self, timeout: float | None = None) -> Any:
        """Wait, or fail as a system does that has run out of something."""
        if FailingSelector.failures:
            FailingSelector.failures -= 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return super().select(timeout)


def test_watchdog_survives_an_error_of_the_system(
    three_nodes: DevNodes, key: str
) -> None:
    """An error that nobody thought of is logged, and renewal goes on."""
    addresses = parse_nodes(three_nodes.urls)
    fanout = Fanout(
        [Node(node, clock=SYSTEM_CLOCK, connect_timeout=1.0) for node in addresses],
        clock=SYSTEM_CLOCK,
        timing=Timing(60.0, 60.0, PATIENT, 1.0),
        new_selector=FailingSelector,
    )
    with (
        client(three_nodes, ttl=3, transport=fanout) as redlock,
        watchdog(redlock) as dog,
    ):
        diary = Diary(redlock)
        leases = [redlock.acquire(f"{key}:{number}") for number in range(5)]
        for lease in leases:
            dog.watch(lease, **diary.ears)
        FailingSelector.failures = 2

        until(lambda: len(set(diary.renewals)) == len(leases) or diary.losses)

        assert FailingSelector.failures == 0
        assert diary.losses == []
        for lease in leases:
            assert dog.forget(lease)
            redlock.release(lease)
