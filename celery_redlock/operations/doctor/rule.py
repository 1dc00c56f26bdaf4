"""Decorators that make a function a rule.

================  ===========================================================
``@rule()``       for a function of the case that yields findings
``@node_rule()``  for a function of one node's report and the case
``@task_rule()``  for a function of one lock task and the case
================  ===========================================================

The latter two yield a ``Problem``. Its fact is a clause that reads on after the name of
the node or task, without a full stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.operations.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.operations.doctor.case import Case, LockTask
    from celery_redlock.operations.doctor.finding import Severity
    from celery_redlock.operations.inspect import NodeReport

__all__ = ["Problem", "Rule", "node_rule", "rule", "task_rule"]


class Problem(NamedTuple):
    """A finding about one node or task: code, severity, fact and remedy."""

    code: str
    severity: Severity
    fact: str
    remedy: str

    def of(self, kind: str, name: str) -> Finding:
        """Return the finding about the node or task of this name."""
        fact = f"{kind} {name} {self.fact}."
        return Finding(self.code, self.severity, fact, self.remedy, name)


@dataclass(frozen=True, slots=True)
class Rule:
    """A function that looks at a case and yields findings.

    Attributes:
        find: The function.
        offline: Whether it needs no network: it looks at settings and tasks only.
        logged_at_start: Whether a worker logs the same facts itself when it starts.
    """

    find: Callable[[Case], Iterator[Finding]]
    offline: bool
    logged_at_start: bool

    def __call__(self, case: Case) -> Iterator[Finding]:
        """Yield what the function finds."""
        return self.find(case)


def rule(
    *, offline: bool = False, logged_at_start: bool = False
) -> Callable[[Callable[[Case], Iterator[Finding]]], Rule]:
    """Make the decorated function a rule; see the attributes of ``Rule``."""
    return lambda find: Rule(find, offline, logged_at_start)


def node_rule(
    *, logged_at_start: bool = False
) -> Callable[[Callable[[NodeReport, Case], Iterator[Problem]]], Rule]:
    """Make the decorated function a rule that is applied to each node."""

    def decorate(look: Callable[[NodeReport, Case], Iterator[Problem]]) -> Rule:
        def find(case: Case) -> Iterator[Finding]:
            for report in case.reports:
                for problem in look(report, case):
                    yield problem.of("Node", report.label)

        return Rule(find, offline=False, logged_at_start=logged_at_start)

    return decorate


def task_rule() -> Callable[[Callable[[LockTask, Case], Iterator[Problem]]], Rule]:
    """Make the decorated function a rule that is applied to each lock task."""

    def decorate(look: Callable[[LockTask, Case], Iterator[Problem]]) -> Rule:
        def find(case: Case) -> Iterator[Finding]:
            for task in case.lock_tasks:
                for problem in look(task, case):
                    yield problem.of("Task", task.task.name)

        return Rule(find, offline=True, logged_at_start=False)

    return decorate
