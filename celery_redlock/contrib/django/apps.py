"""What ``"celery_redlock.contrib.django"`` in ``INSTALLED_APPS`` adds to a project.

==================  ============================================================
system checks       what ``celery redlock doctor`` finds; see ``checks``
the admin           locks that are held, and a way to release one; see ``admin``
a permission        ``celery_redlock.release_heldlock``; ``migrate`` makes it
claims              given back with the transaction they were taken in; ``claims``
==================  ============================================================

It has no tables. ``FencedModel`` works without it.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register

__all__ = ["RedlockConfig"]


class RedlockConfig(AppConfig):
    """The app. Its label is ``celery_redlock``."""

    name = "celery_redlock.contrib.django"
    label = "celery_redlock"
    verbose_name = "Celery locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and look after claims in transactions."""
        from celery_redlock.contrib.django import checks, claims

        claims.begin()

        register(checks.check_project, checks.TAG)
        register(checks.check_nodes, checks.TAG, deploy=True)
