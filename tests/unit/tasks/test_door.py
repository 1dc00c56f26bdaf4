"""What one imports from the package, and what that costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import celery_redlock


def test_door_is_sorted_and_small() -> None:
    """A reader takes it in at one glance."""
    assert celery_redlock.__all__ == sorted(celery_redlock.__all__)
    assert len(celery_redlock.__all__) <= 25


@pytest.mark.parametrize("name", celery_redlock.__all__)
def test_name_of_the_door_leads_somewhere(name: str) -> None:
    """Every name is there, and says so in ``dir``."""
    assert getattr(celery_redlock, name) is not None
    assert name in dir(celery_redlock)


def test_other_names_are_no_attributes() -> None:
    """A typing error is an AttributeError, as everywhere."""
    with pytest.raises(AttributeError, match="singleton_tusk"):
        celery_redlock.singleton_tusk  # noqa: B018  (asking is the point)


def test_publishing_loads_neither_redis_nor_the_worker() -> None:
    """A web process that only publishes pays for what it uses."""
    program = """
import sys
from celery_redlock import singleton_task
heavy = {"redis", "celery.worker.request", "celery_redlock.core.redlock"}
print(heavy & sys.modules.keys())
"""

    said = subprocess.run(  # noqa: S603  (the program above)
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert said == "set()\n"
