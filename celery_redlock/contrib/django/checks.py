"""What ``celery redlock doctor`` finds, as Django's system checks.

==================================  ==============================================
``manage.py check`` (``runserver``,  settings that cannot be used, tasks whose
``migrate``, a worker's start)       options do not go with them. No network
``manage.py check --deploy``         the nodes as well: all that ``doctor`` finds
==================================  ==============================================

The id of a check is the code that doctor prints, behind the app's label:
``celery_redlock.acks-late``. ``SILENCED_SYSTEM_CHECKS`` takes it, and ``--tag
celery_redlock`` runs these checks only. Doctor's notes are of the level INFO.

Some codes are of these checks alone: ``settings`` (a setting cannot be used, or no
nodes are named), ``option`` (of a task, that does not go with a setting) and
``tasks`` (the modules with tasks cannot be imported).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Info, Warning  # noqa: A004  (its name for it)

from celery_redlock.contrib.django.project import celery_app
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.diagnostics import Finding
    from celery_redlock.runtime import Runtime

__all__ = ["TAG", "check_nodes", "check_project"]

TAG = "celery_redlock"

# Celery runs all checks when it imports a project's tasks, which is what we let it do.
_busy = threading.local()


def check_project(**_: Any) -> list[CheckMessage]:
    """Check what can be checked without asking anybody."""
    if getattr(_busy, "checking", False):
        return []
    _busy.checking = True
    try:
        return list(_project_messages())
    finally:
        _busy.checking = False


def check_nodes(**_: Any) -> list[CheckMessage]:
    """Check the nodes. Takes about a second, for which their clocks are watched."""
    from celery_redlock.diagnostics import diagnose
    from celery_redlock.runtime import runtime_of

    try:
        app = celery_app()
        redlock = runtime_of(app).redlock
    except (ConfigurationError, ImportError, AttributeError):
        return []  # `check_project` says so
    local = set(_local_findings(app))
    return [_message(found) for found in diagnose(redlock, app) if found not in local]


def _project_messages() -> Iterator[CheckMessage]:
    from celery_redlock.options import LockOptions
    from celery_redlock.runtime import runtime_of

    try:
        app = celery_app()
        app.loader.import_default_modules()
    except Exception as error:  # noqa: BLE001  (theirs may raise anything)
        yield Error(
            f"The project's tasks cannot be imported: {type(error).__name__}: {error}",
            hint="Correct the module, or REDLOCK_CELERY_APP.",
            id=f"{TAG}.tasks",
        )
        return
    tasks = [
        task
        for _, task in sorted(app.tasks.items())
        if isinstance(getattr(task, "lock_options", None), LockOptions)
    ]
    if not tasks and not app.conf.get("redlock_nodes"):
        yield Info(
            "No nodes are named, and no task takes a lock.",
            hint="Set CELERY_REDLOCK_NODES to use locks, or silence this.",
            id=f"{TAG}.settings",
        )
        return
    try:
        runtime = runtime_of(app)
        runtime.redlock  # noqa: B018  (building it checks the nodes)
    except ConfigurationError as error:
        yield Error(
            str(error), hint="No task takes a lock before.", id=f"{TAG}.settings"
        )
        return
    for task in tasks:
        yield from _option_messages(runtime, task)
    yield from map(_message, _local_findings(app))


def _option_messages(runtime: Runtime, task: Any) -> Iterator[CheckMessage]:
    try:
        runtime.options(task.name, task.lock_options)
    except ConfigurationError as error:
        yield Error(str(error), obj=task.name, id=f"{TAG}.option")


def _local_findings(app: Any) -> list[Finding]:
    """Return what the rules find that ask nobody."""
    from celery_redlock.diagnostics import Case, deployment, tasks
    from celery_redlock.runtime import runtime_of

    case = Case(runtime_of(app).redlock, (), app)
    rules = (
        deployment.guard,
        tasks.timing,
        tasks.time_limits,
        tasks.visibility,
        tasks.acks_late,
        tasks.result_backend,
    )
    try:
        return [found for rule in rules for found in rule(case)]
    except ConfigurationError:
        return []  # an option that does not go with a setting; it is reported


def _message(found: Finding) -> CheckMessage:
    from celery_redlock.diagnostics import Severity

    kinds = {Severity.NOTE: Info, Severity.WARNING: Warning, Severity.ERROR: Error}
    return kinds[found.severity](
        found.fact, hint=found.remedy, obj=found.about or None, id=f"{TAG}.{found.code}"
    )
