"""The settings on which clients must agree, as text and as a difference."""

from __future__ import annotations

import pytest

from celery_redlock.core.configuration import Configuration, refusal

OURS = Configuration(("a:1/0", "b:1/0"), 60.0, is_guarded=True)


def test_configuration_is_one_line_of_text() -> None:
    """Every node stores it, and scripts compare it as a whole."""
    text = "format 2, max_ttl 60 s, restart guard on, nodes a:1/0, b:1/0"

    assert str(OURS) == text
    assert Configuration.parse(text) == OURS


@pytest.mark.parametrize(
    ("theirs", "difference", "remedy"),
    [
        (
            Configuration(OURS.labels, 30.0, is_guarded=True),
            "are set up with max_ttl 30 s; this client has max_ttl 60 s",
            "Set redlock_max_ttl = 30, or move the nodes to yours",
        ),
        (
            Configuration(OURS.labels, 60.0, is_guarded=False),
            "the restart guard off; this client has the restart guard on",
            "Set redlock_restart_guard = False, or",
        ),
        (
            Configuration(("a:1/0",), 30.0, is_guarded=True),
            "max_ttl 30 s and the nodes a:1/0; this client has max_ttl 60 s and",
            "Set redlock_max_ttl = 30 and redlock_nodes to the same nodes, or",
        ),
        (
            "closed: moving to x",
            "are closed: moving to x",
            "Wait until `celery -A proj redlock reconfigure` is done",
        ),
        (
            "protocol 1, max_ttl 60 s, nodes a",
            "were used by an older celery-redlock (protocol 1, max_ttl 60 s, nodes a)",
            "Stop all workers and beats, then run `celery -A proj redlock init`",
        ),
        ("format 9, x", "another version of celery-redlock", "Use one version"),
        ("", "have lost their memory", "vote again by themselves"),
    ],
)
def test_refusal_says_the_difference(
    theirs: object, difference: str, remedy: str
) -> None:
    """And what to change, so that no reader compares two long lines."""
    told = refusal(str(theirs), str(OURS))

    assert difference in told[0]
    assert remedy in told[1]
