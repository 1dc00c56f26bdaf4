"""The app ``"celery_redlock.contrib.django"`` for ``INSTALLED_APPS``.

It adds to a project:

==================  ============================================================
system checks       what ``celery redlock doctor`` finds; see ``checks``
the admin           a list of held locks, and a page to release one; see ``admin``
a permission        ``celery_redlock.release_heldlock``; ``migrate`` creates it
claims              released if the transaction is rolled back; see ``claims``
two tables          records of calls, for tasks with ``exactly_once_in``, and the
                    messages of an ``Outbox``; see ``records`` and ``outbox``.
                    ``migrate`` creates them
==================  ============================================================

``FencedModel`` works without it.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class RedlockConfig(AppConfig):
    """The Django app, with the label ``celery_redlock``."""

    name = "celery_redlock.contrib.django"
    label = "celery_redlock"
    verbose_name = "Celery locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and connect the receiver of claims."""
        from celery_redlock.contrib.django import checks, claims
        from celery_redlock.signals import publish_claimed

        publish_claimed.connect(claims.release_on_rollback, weak=False)
        register(checks.check_project, checks.TAG)
        register(checks.check_nodes, checks.TAG, deploy=True)
