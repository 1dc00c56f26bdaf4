"""Retry a call as its ``autoretry_for`` says, after an error outside of its body.

Celery wraps the body alone. A task whose effects happen once begins and commits a
transaction around its body, and a database that is away then is an error like one in
the body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from celery.app.autoretry import add_autoretry_behaviour

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task


def retry_as_configured(task: Task, error: Exception) -> None:
    """Retry a call as Celery does after this error in its body, if it is named there.

    Raises:
        Retry: The call is published again.
        Exception: That error, where there is no further retry.
    """
    failing = _Failing(task, error)
    add_autoretry_behaviour(failing)
    if "_orig_run" in vars(failing):
        failing.run()


class _Failing:
    """The task, with a body that raises an error: what Celery wraps."""

    def __init__(self, task: Task, error: Exception) -> None:
        def run() -> NoReturn:
            raise error

        self._task = task
        self.run: Callable[[], Any] = run

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_run":  # the real body, which is wrapped already
            raise AttributeError(name)
        return getattr(self._task, name)

    def __delattr__(self, name: str) -> None:
        delattr(self._task, name)  # `override_max_retries`
