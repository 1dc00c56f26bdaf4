"""What all unit tests need."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_shared_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep apart what ``@shared_task`` gives to every app that is made later."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
