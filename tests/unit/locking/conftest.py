"""A watchdog that the test steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.core.support import Stepped

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock


@pytest.fixture
def watchdog(redlock: Redlock) -> Stepped:
    """Give a watchdog without a thread."""
    return Stepped(redlock)
