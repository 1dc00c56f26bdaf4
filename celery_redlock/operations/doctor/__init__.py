"""Finds what makes locks unsafe, slow or unavailable, and says what to do about it.

::

    for finding in diagnose(redlock, app):
        print(finding.severity.word, finding.fact, finding.remedy)

A *rule* is a function that looks at a ``Case`` and yields a ``Finding`` for each
problem. A healthy deployment yields none. The app is optional: the lock can be used
without Celery.

Read ``rule`` first, and ``inquiry``, by which rules ask the running workers. Each other
file has the rules of one subject: ``votes``, ``servers``, ``placement``, ``stores``,
``settings``, ``workers``. A new rule needs no registration.
"""

from __future__ import annotations

import logging
import pkgutil
import threading
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING

from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.forks import forks_wait
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.operations.doctor.inquiry import Workers
from celery_redlock.operations.doctor.rule import (
    Case,
    Finding,
    Rule,
    Severity,
    address_of,
    folded,
    worst_of,
)
from celery_redlock.operations.doctor.votes import state as state_of_nodes
from celery_redlock.operations.inspect import inspect_nodes
from celery_redlock.operations.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

    from celery_redlock.locks.redlock import Redlock

__all__ = [
    "OFFLINE",
    "RULES",
    "Case",
    "Finding",
    "Severity",
    "Workers",
    "address_of",
    "counted",
    "diagnose",
    "findings_of",
    "folded",
    "log_diagnosis",
    "log_findings",
    "state_of_nodes",
    "worst_of",
]

log = logging.getLogger(__name__)

RULES: tuple[Rule, ...] = tuple(
    rule
    for file in pkgutil.iter_modules(__path__)
    for rule in vars(import_module(f"{__name__}.{file.name}")).values()
    if isinstance(rule, Rule)
)
"""All rules of this package."""

OFFLINE = tuple(rule for rule in RULES if rule.offline)
"""The rules that need no network."""

_RULE_TAKES = 1.0  # seconds, where names are looked up and the broker answers

_LEVELS = {
    Severity.NOTE: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}


def diagnose(
    redlock: Redlock,
    app: Celery | None = None,
    *,
    span: float = 1.0,
    rules: Iterable[Rule] = RULES,
) -> list[Finding]:
    """Examine a deployment, and the app that uses it. Returns the worst findings first.

    Takes as long as the slowest node, and a little longer than ``span``. With an app, a
    rule that asks its running workers waits for their answers for a second. There are
    four such inquiries; a broker that hangs takes five seconds, once. The modules of
    the app must be imported. The clocks of the nodes are watched for ``span`` seconds.
    """
    return findings_of(Case(redlock, inspect_nodes(redlock, span=span), app), rules)


def findings_of(case: Case, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """Return the findings, the worst first, without those that the project ignores.

    Of equally bad ones, those about the whole deployment come first.
    """
    found: list[Finding] = []
    for rule in rules:
        with forks_wait(_RULE_TAKES):  # it looks up names, and may use the broker
            found += rule(case)
    found = [finding for finding in found if finding.code not in case.ignored]
    return sorted(found, key=lambda finding: (-finding.severity, bool(finding.about)))


def log_findings(findings: Iterable[Finding]) -> None:
    """Write one line with the number of findings and their codes to the log.

    Its level is that of the worst one. Each finding is a line at DEBUG.
    """
    found = list(findings)
    worst = worst_of(found)
    if worst is None:
        return
    for finding in found:
        fields = log_fields("finding", code=finding.code, about=finding.about)
        log.debug("%s: %s", finding.severity.word, finding, extra=fields)
    codes = Counter(finding.code for finding in found)
    log.log(
        _LEVELS[worst],
        "The doctor found %s: %s. %s describes each, and its remedy.",
        counted(found),
        ", ".join(f"{c} ({n})" if n > 1 else c for c, n in codes.items()),
        f"`{COMMAND} doctor`",
        extra=log_fields("findings", number=len(found), codes=list(codes)),
    )


def counted(findings: Iterable[Finding]) -> str:
    """Return how many findings there are of each severity: "1 error, 2 notes"."""
    numbers = Counter(finding.severity for finding in findings)
    return ", ".join(
        plural(numbers[severity], severity.word)
        for severity in reversed(Severity)
        if numbers[severity]
    )


def log_diagnosis(redlock: Redlock, app: Celery | None = None) -> threading.Thread:
    """Diagnose in the background of a worker that starts, and log the findings.

    Leaves out what the worker logs itself when it starts.

    Returns:
        The thread, started. It ends by itself, and the process does not wait for it.
    """

    def run() -> None:
        try:
            rules = (rule for rule in RULES if not rule.skipped_at_start)
            log_findings(diagnose(redlock, app, rules=rules))
        except Exception:
            log.exception("The diagnosis failed. No lock depends on it.")

    thread = threading.Thread(target=run, name="redlock-diagnosis", daemon=True)
    thread.start()
    return thread
