"""Look for what makes locks unsafe, slow or unavailable; say what to do about it.

::

    for finding in diagnose(redlock, app):
        print(finding.severity.word, finding.fact, finding.remedy)

A *rule* is a function that looks at a ``Case`` and yields what it finds. A healthy
deployment yields nothing. Celery is not imported, and an app is optional: the lock
can be used without.

========================  =======================================================
rules about               are in
========================  =======================================================
one node                  ``diagnostics.nodes``
the nodes taken together  ``diagnostics.deployment``
servers with other uses   ``diagnostics.servers``
tasks and settings        ``diagnostics.tasks``
========================  =======================================================
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from celery_redlock.core.examination import examine
from celery_redlock.diagnostics import deployment, nodes, servers, tasks
from celery_redlock.diagnostics.case import Case
from celery_redlock.diagnostics.finding import Finding, Severity, worst_of
from celery_redlock.logs import about

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from celery_redlock.core.redlock import Redlock

__all__ = [
    "ABOUT_VOTES",
    "Case",
    "Finding",
    "Severity",
    "diagnose",
    "findings_of",
    "log_diagnosis",
    "log_findings",
    "worst_of",
]

log = logging.getLogger("celery_redlock.diagnostics")

RULES = (
    deployment.quorum,
    nodes.reach,
    nodes.permissions,
    nodes.kind,
    deployment.twins,
    deployment.standing,
    deployment.guard,
    nodes.memory,
    nodes.clock,
    nodes.latency,
    nodes.neighbours,
    servers.celerys,
    nodes.persistence,
    deployment.tls,
    deployment.number,
    deployment.hosts,
    tasks.timing,
    tasks.time_limits,
    tasks.visibility,
    tasks.runtimes,
    tasks.acks_late,
    tasks.result_backend,
)

ABOUT_VOTES = frozenset(
    {
        "closed",
        "cluster",
        "configuration",
        "no-quorum",
        "quarantine",
        "quorum-edge",
        "replica",
        "same-server",
        "unreachable",
        "unsynced",
    }
)
"""Codes of what ``Redlock.check`` tells as well, in fewer words."""

_LEVELS = {
    Severity.NOTE: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}


def diagnose(redlock: Redlock, app: Any = None, *, span: float = 1.0) -> list[Finding]:
    """Examine a deployment and what uses it. Returns the worst findings first.

    Takes as long as the slowest node, and a little longer than ``span``.

    Args:
        redlock: The service on its nodes.
        app: The Celery app whose tasks take locks; its modules must be imported.
        span: Seconds for which the nodes' clocks are watched.
    """
    return findings_of(Case(redlock, examine(redlock, span=span), app))


def findings_of(case: Case) -> list[Finding]:
    """Return what the rules find, the worst first."""
    found = [finding for rule in RULES for finding in rule(case)]
    return sorted(found, key=lambda finding: -finding.severity)


def log_findings(findings: Iterable[Finding], *, besides: Collection[str] = ()) -> None:
    """Write each finding to the log ``celery_redlock.diagnostics``, by severity.

    Args:
        findings: What was found.
        besides: Codes of what has been said already.
    """
    for finding in findings:
        if finding.code not in besides:
            fields = about("finding", code=finding.code, about=finding.about)
            log.log(_LEVELS[finding.severity], "%s", finding, extra=fields)


def log_diagnosis(
    redlock: Redlock, app: Any = None, *, besides: Collection[str] = ()
) -> threading.Thread:
    """Diagnose in the background and log what is found: for a worker that starts.

    Returns:
        The thread that does it, started. It ends by itself and holds nobody up.
    """

    def run() -> None:
        try:
            log_findings(diagnose(redlock, app), besides=besides)
        except Exception:
            log.exception("The diagnosis failed. No lock depends on it.")

    thread = threading.Thread(target=run, name="redlock-diagnosis", daemon=True)
    thread.start()
    return thread
