"""The app, the worker and the rival of the tests of tasks."""

from __future__ import annotations

from tests.unit.tasks.conftest import app, call_id, rival, worker

__all__ = ["app", "call_id", "rival", "worker"]
