"""celery-redlock for Django.

Exports ``FencedModel`` and ``FencedQuerySet``, defined in ``fencing``. They are
imported on first use: Django imports this package to find the apps, and models may not
be imported before that.

The app for ``INSTALLED_APPS`` is in ``apps``; read that first. It registers ``checks``
(what doctor finds, as system checks) and connects ``claims`` (released on rollback);
``models`` and ``admin`` show the held locks, the records of calls, which ``records``
writes, and the messages of ``outbox``; their tables are in ``migrations``.
``project`` finds the Celery app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redlock.contrib.django.fencing import FencedModel, FencedQuerySet

__all__ = ["FencedModel", "FencedQuerySet"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from celery_redlock.contrib.django import fencing

        return getattr(fencing, name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
