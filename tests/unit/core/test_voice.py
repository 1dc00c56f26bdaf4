"""What is said of a node: each change, and no flood."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.voice import NodeVoice

if TYPE_CHECKING:
    from celery_redlock.testing import FakeClock

LATE = "Node a:6379/0 is late; asking it without waiting for it."
IN_TIME = "Node a:6379/0 answers in time again."


@pytest.fixture
def voice(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> NodeVoice:
    """Give what speaks of one node, and hear all of it."""
    caplog.set_level(logging.INFO, "celery_redlock.node")
    return NodeVoice("a:6379/0", clock)


def test_node_that_is_late_and_in_time_again_is_spoken_of(
    voice: NodeVoice, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is a change."""
    voice.late()
    voice.in_time()

    assert caplog.messages == [LATE, IN_TIME]


def test_node_on_the_verge_of_its_time_does_not_fill_the_log(
    voice: NodeVoice, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes and goes a hundred times a second: that is said once a minute."""
    for _ in range(100):
        voice.late()
        voice.in_time()
    clock.advance(59.9)
    voice.late()
    voice.in_time()
    assert caplog.messages == [LATE, IN_TIME]

    clock.advance(0.1)
    voice.late()
    voice.in_time()

    again = f"{LATE} It was so 100 times since that was said last."
    assert caplog.messages[2:] == [again, IN_TIME]


def test_why_a_node_does_not_vote_is_said_once(
    voice: NodeVoice, caplog: pytest.LogCaptureFixture
) -> None:
    """And another reason when there is one."""
    for reason in ("is a replica", "is a replica", "is set up differently"):
        voice.unfit(reason)

    assert caplog.messages == [
        "Node a:6379/0 is a replica. It does not vote.",
        "Node a:6379/0 is set up differently. It does not vote.",
    ]
