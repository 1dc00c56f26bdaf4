"""Durations, and how they limit each other."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from typing import Any

import pytest

from celery_redlock.basics.timing import Timing, seconds_of, seconds_text
from celery_redlock.errors import ConfigurationError
from celery_redlock.locks.lease import drift_of


def timing(**durations: Any) -> Timing:
    """Return durations that fit, except the given ones."""
    usual = {"ttl": 30, "max_ttl": 60, "node_timeout": 0.05, "connect_timeout": 1}
    return Timing(**{**usual, **durations})


@pytest.mark.parametrize(("ttl", "drift"), [(1.0, 0.012), (30.0, 0.302), (0.2, 0.004)])
def test_drift_is_a_hundredth_and_two_milliseconds(ttl: float, drift: float) -> None:
    """Clocks drift by a rate; rounding and scheduling add a fixed amount."""
    assert drift_of(ttl) == pytest.approx(drift)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1, 1.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (1e-9, 1e-9)],
)
def test_seconds_are_numbers_or_timedeltas(value: Any, seconds: float) -> None:
    """Both mean the same, as a float."""
    found = seconds_of("ttl", value)

    assert found == seconds
    assert type(found) is float


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.34, "12.3 s"),
        (0.5, "0.5 s"),
        (0.04, "0.04 s"),
        (0.004, "less than 0.01 s"),
        (-1.0, "less than 0.01 s"),
    ],
)
def test_short_time_is_not_told_as_none(seconds: float, text: str) -> None:
    """A lock that is held "for 0.0 s more" is not held."""
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        math.nan,
        math.inf,
        -math.inf,
        True,
        "30",
        None,
        b"3",
        [1],
        10**400,
        timedelta(0),
        timedelta(seconds=-1),
    ],
)
def test_anything_else_is_no_duration(value: Any) -> None:
    """The error names the setting and its value, as it was written."""
    with pytest.raises(ConfigurationError) as caught:
        seconds_of("redlock_ttl", value)

    assert str(caught.value).startswith(f"redlock_ttl is {value!r}; ")
    assert str(caught.value).endswith("it must be a number of seconds above 0.")


@pytest.mark.parametrize("value", [sys.maxsize, 1e300, timedelta.max])
def test_duration_is_one_that_can_be_added_to_an_instant(value: Any) -> None:
    """Nodes and stores have 64 bits for its end, in milliseconds."""
    seconds = seconds_of("claim_ttl", value)

    assert seconds == timedelta.max.total_seconds()
    assert round(seconds * 1000) < 2**63 // 100


@pytest.mark.parametrize("name", ["ttl", "max_ttl", "node_timeout", "connect_timeout"])
def test_each_duration_is_checked(name: str) -> None:
    """The error names a wrong duration; a right one is returned in seconds."""
    with pytest.raises(ConfigurationError, match=f"^{name} is nan"):
        timing(**{name: math.nan})

    span = timedelta(seconds=40 if name.endswith("ttl") else 2)
    assert getattr(timing(**{name: span}), name) == span.total_seconds()


def test_ttl_is_at_most_max_ttl() -> None:
    """A restarted node stays out for max_ttl: no lock may last longer."""
    assert timing(ttl=60, max_ttl=60).ttl == 60.0
    with pytest.raises(ConfigurationError, match=r"60\.1 s is above max_ttl") as caught:
        timing(ttl=60.1)
    assert "Lower the ttl" in str(caught.value)


def test_ttl_is_above_three_node_timeouts() -> None:
    """Otherwise a lock could expire before it is granted."""
    assert timing(ttl=0.1501).ttl == 0.1501
    with pytest.raises(ConfigurationError, match="not above three node time-outs"):
        timing(ttl=0.15)


@pytest.mark.parametrize(("max_ttl", "quarantine"), [(60, 62.2), (10, 11.2)])
def test_quarantine_outlasts_every_lock(max_ttl: float, quarantine: float) -> None:
    """1 % for nodes' clocks, 1 % for holders', 1 s for requests on their way."""
    assert timing(ttl=5, max_ttl=max_ttl).quarantine == pytest.approx(quarantine)
