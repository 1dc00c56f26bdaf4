"""Finds the Celery app of a Django project."""

from __future__ import annotations

from typing import Any


def celery_app() -> Any:
    """Return the project's Celery app.

    ``REDLOCK_CELERY_APP`` in Django's settings names it (``"proj.celery:app"``, or the
    app itself). Without that setting it is Celery's current app: the one that
    ``proj/__init__.py`` imports, as Celery's guide for Django recommends.

    Raises:
        ImportError, AttributeError: There is no app of that name.
    """
    from celery import current_app
    from django.conf import settings
    from kombu.utils.imports import symbol_by_name

    named = getattr(settings, "REDLOCK_CELERY_APP", None)
    if named:
        return symbol_by_name(named)  # type: ignore[no-untyped-call]
    return current_app._get_current_object()  # noqa: SLF001  (the app behind the proxy)
