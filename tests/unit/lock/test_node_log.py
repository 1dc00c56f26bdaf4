"""The log of a node's state changes: each change once, and no flood."""

from __future__ import annotations

import logging

import pytest

from celery_redlock.testing import FakeClock
from celery_redlock.wire.node_log import NodeLog

LATE = (
    "Node a:6379/0 answers late: no reply for 0.05 s. "
    "Calls wait for it only if they need its vote."
)
IN_TIME = "Node a:6379/0 answers in time again."


@pytest.fixture
def node_log(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> NodeLog:
    """Give the log of one node, with all levels enabled."""
    caplog.set_level(logging.INFO, "celery_redlock.wire.node_log")
    return NodeLog("a:6379/0", clock)


def test_node_that_is_late_again_and_again_is_logged_once_a_minute(
    node_log: NodeLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change is one line. The next line counts how often the node was late."""
    for _ in range(100):
        node_log.late(0.05)
        node_log.in_time()
    clock.advance(59.9)
    node_log.late(0.05)
    node_log.in_time()
    assert caplog.messages == [LATE, IN_TIME]

    clock.advance(0.1)
    node_log.late(0.05)
    node_log.in_time()

    again = f"{LATE} Late 100 more times since the last report."
    assert caplog.messages[2:] == [again, IN_TIME]


def test_time_that_says_nothing_is_not_logged(
    node_log: NodeLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller had less time than the node may take."""
    node_log.late(0.004)

    assert caplog.messages == [
        LATE.replace("no reply for 0.05 s", "no reply for less than 0.01 s")
    ]


def test_reason_of_an_unfit_node_is_logged_once(
    node_log: NodeLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Another reason is another line."""
    for reason in ("is a replica", "is a replica", "is set up differently"):
        node_log.unfit(reason)

    assert caplog.messages == [
        "Node a:6379/0 is a replica. It does not vote.",
        "Node a:6379/0 is set up differently. It does not vote.",
    ]


def test_connection_that_is_lost_again_and_again_is_logged_once_a_minute(
    node_log: NodeLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Another reason is another line. The next line counts those held back."""
    for reason in ("is late", "is late", "was closed", "was closed", "was closed"):
        node_log.lost(reason)
    assert caplog.messages == ["Node a:6379/0 is late.", "Node a:6379/0 was closed."]

    clock.advance(60)
    node_log.lost("was closed")

    more = "Node a:6379/0 was closed. This happened 2 more times since the last report."
    assert caplog.messages[2:] == [more]


def test_node_that_refuses_again_and_again_is_logged_once_a_minute(
    node_log: NodeLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it answers other requests in between, as one with a full memory."""
    for reason in ("answered OOM", "answered OOM", "does not know the command ZADD"):
        node_log.refused(reason)
    assert caplog.messages == ["Node a:6379/0 answered OOM."]

    clock.advance(60)
    node_log.refused("answered OOM")

    more = " It has refused 2 more requests since the last report."
    assert caplog.messages[1:] == [f"{caplog.messages[0]}{more}"]
