"""Words for operators."""

from __future__ import annotations

import math

import pytest

from celery_redlock.basics.timing import duration
from celery_redlock.locks.lease import Holder
from celery_redlock.operations.words import since


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 m 00 s"),
        (185, "3 m 05 s"),
        (3600, "1 h 00 m"),
        (90_000, "1 d 01 h"),
        (math.inf, "for ever"),
    ],
)
def test_duration_is_rounded(seconds: float, text: str) -> None:
    """A duration that is longer has no smaller text: 9.96 s are not 9 s."""
    assert duration(seconds) == text


def test_start_by_a_clock_that_is_ahead_has_no_age() -> None:
    """It has not begun 0.0 s ago, but at an instant that is not known here."""
    holder = Holder("t", started=32_503_680_000.0)

    assert since(holder) == "3000-01-01 00:00:00 UTC"
