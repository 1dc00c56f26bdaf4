"""The app and the worker of the tests of tasks."""

from __future__ import annotations

from tests.unit.tasks.conftest import app, worker

__all__ = ["app", "worker"]
