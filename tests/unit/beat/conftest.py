"""Beats on fake nodes, with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import current_app

from celery_redlock.testing import FakeClock
from tests.unit.beat.support import NOON, Site, at


@pytest.fixture(autouse=True)
def _current_app_is_restored() -> Iterator[None]:
    before = current_app._get_current_object()  # noqa: SLF001
    yield
    before.set_current()


@pytest.fixture
def site(caplog: pytest.LogCaptureFixture) -> Site:
    """Give nodes and a broker, and a clock that stands still ten seconds after noon."""
    return Site(FakeClock(wall=at(NOON) + 10), caplog)
