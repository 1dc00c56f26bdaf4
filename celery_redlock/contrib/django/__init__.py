"""celery-redlock for Django.

``FencedModel`` and ``FencedQuerySet`` are offered here and live in ``fencing``.
They come on first use: Django imports this module to see which apps there are,
and no model may be imported before it knows.
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
