"""Beats on fake nodes, with a fake clock."""

from __future__ import annotations

from itertools import count
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import pytest
from celery import current_app

from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.beat.support import (
    NOON,
    Beat,
    Broker,
    at,
    minutely,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.unit.beat.support import StartBeat


@pytest.fixture(autouse=True)
def _no_app_stays_the_current_one() -> Iterator[None]:
    before = current_app._get_current_object()  # noqa: SLF001
    yield
    before.set_current()


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still, ten seconds after noon."""
    return FakeClock(wall=at(NOON) + 10)


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give five nodes."""
    nodes = FakeNodes(5, clock=clock)
    nodes.redlock()  # they vote
    return nodes


@pytest.fixture
def broker() -> Broker:
    """Give a broker that writes down what it gets."""
    return Broker()


@pytest.fixture
def start(nodes: FakeNodes, broker: Broker) -> StartBeat:
    """Give a function that starts a beat with a schedule and settings."""
    letters = iter(ascii_lowercase)
    names = (next(letters, f"beat-{number}") for number in count())

    def start(
        schedule: Callable[[], Mapping[str, Any]] = minutely, **settings: Any
    ) -> Beat:
        conf = {f"redlock_{name}": value for name, value in settings.items()}
        return Beat(next(names), nodes.another_client(), broker, schedule, conf=conf)

    return start
