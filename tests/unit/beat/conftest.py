"""Beats on fake nodes, with a fake clock."""

from __future__ import annotations

from itertools import count
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import pytest
from celery import current_app

from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.beat.support import NOON, Beat, Broker, at, crontabs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.unit.beat.support import Schedule, StartBeat


@pytest.fixture(autouse=True)
def _current_app_is_restored() -> Iterator[None]:
    before = current_app._get_current_object()  # noqa: SLF001
    yield
    before.set_current()


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still, ten seconds after noon."""
    return FakeClock(wall=at(NOON) + 10)


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give five nodes that vote."""
    nodes = FakeNodes(5, clock=clock)
    nodes.redlock()
    return nodes


@pytest.fixture
def broker() -> Broker:
    """Give a broker that records the messages that it gets."""
    return Broker()


@pytest.fixture
def start(nodes: FakeNodes, broker: Broker) -> StartBeat:
    """Give a function that starts a beat: the first is named "a", the next "b"."""
    letters = iter(ascii_lowercase)
    names = (next(letters, f"beat-{number}") for number in count())

    def start(
        schedule: Schedule | None = None,
        conf: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        on: FakeNodes | None = None,
        **settings: Any,
    ) -> Beat:
        own = {f"redlock_{name}": value for name, value in settings.items()}
        return Beat(
            next(names),
            (on or nodes).another_client(),
            broker,
            schedule or crontabs(),
            conf={**(conf or {}), **own},
            **(options or {}),
        )

    return start
