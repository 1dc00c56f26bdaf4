"""The findings of ``celery redlock doctor``, as Django's system checks.

===================================  =============================================
``manage.py check`` (``runserver``,  wrong settings, and tasks whose options
``migrate``, a worker's start)       conflict with them. No network
``manage.py check --deploy``         the nodes as well: all findings of ``doctor``
===================================  =============================================

The id of a check is doctor's code behind the app's label: ``celery_redlock.acks-late``.
``SILENCED_SYSTEM_CHECKS`` takes it, and ``--tag celery_redlock`` runs these checks
only. Doctor's notes have the level INFO.

Two codes belong to these checks alone: ``settings`` (a setting is wrong, or no nodes
are named) and ``tasks`` (the modules with tasks cannot be imported).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Error, Info, Warning  # noqa: A004  (Django's name)

from celery_redlock.contrib.django.project import celery_app
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_redlock.operations.doctor import Finding

TAG = "celery_redlock"
_NO_APP = "default"  # the name of the app that Celery makes where there is none

# Celery runs all checks when it imports a project's tasks, as these checks make it do.
_busy = threading.local()


def check_project(**_: object) -> list[CheckMessage]:
    """Check the settings and the tasks, without network."""
    if getattr(_busy, "checking", False):
        return []
    _busy.checking = True
    try:
        return list(_project_messages())
    finally:
        _busy.checking = False


def check_nodes(**_: object) -> list[CheckMessage]:
    """Check the nodes, whose clocks are watched for a second, and the workers."""
    from celery_redlock.app.runtime import runtime_of
    from celery_redlock.operations.doctor import diagnose, folded

    try:
        app = celery_app()
        redlock = runtime_of(app).redlock
    except Exception:  # noqa: BLE001  (user modules may raise anything)
        return []  # `check_project` reports this
    local = set(_local_findings(app))
    found = [finding for finding in diagnose(redlock, app) if finding not in local]
    return [_message(finding) for finding in folded(found)]


def _project_messages() -> Iterator[CheckMessage]:
    from celery_redlock.app.runtime import runtime_of
    from celery_redlock.operations.doctor import folded
    from celery_redlock.options.lock_options import lock_tasks

    try:
        app = celery_app()
        app.loader.import_default_modules()
    except Exception as error:  # noqa: BLE001  (user modules may raise anything)
        yield Error(
            f"The project's tasks cannot be imported: {type(error).__name__}: {error}",
            hint="Correct the module, or REDLOCK_CELERY_APP.",
            id=f"{TAG}.tasks",
        )
        return
    tasks = lock_tasks(app)
    if not tasks and app.main == _NO_APP:
        yield Info(
            "No Celery app of the project is imported, so its locks are not checked.",
            hint="Import it in the project's __init__.py, as Celery's guide for Django "
            'recommends, or set REDLOCK_CELERY_APP = "proj.celery:app".',
            id=f"{TAG}.app",
        )
        return
    if not tasks and not app.conf.get("redlock_nodes"):
        yield Info(
            "redlock_nodes is not set, and no task takes a lock.",
            hint="Set CELERY_REDLOCK_NODES to use locks, or silence this check.",
            id=f"{TAG}.settings",
        )
        return
    try:
        runtime_of(app).redlock  # noqa: B018  (building it checks the nodes)
    except ConfigurationError as error:
        yield Error(
            str(error),
            hint="No task can take a lock until this is corrected.",
            id=f"{TAG}.settings",
        )
        return
    yield from map(_message, folded(_local_findings(app)))


def _local_findings(app: Celery) -> list[Finding]:
    """Return the findings that need no network."""
    from celery_redlock.app.runtime import runtime_of
    from celery_redlock.operations.doctor import OFFLINE, Case, findings_of

    return findings_of(Case(runtime_of(app).redlock, (), app), OFFLINE)


def _message(found: Finding) -> CheckMessage:
    from celery_redlock.operations.doctor import Severity

    kinds = {Severity.NOTE: Info, Severity.WARNING: Warning, Severity.ERROR: Error}
    return kinds[found.severity](
        found.fact, hint=found.remedy, obj=found.about or None, id=f"{TAG}.{found.code}"
    )
