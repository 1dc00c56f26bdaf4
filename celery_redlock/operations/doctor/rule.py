"""Rules: each looks at a `Case`, and yields a `Finding` for each problem.

===================  ========================================================
``@rule()``          for a function of the case
``@rule("Node")``    for a function of one node's report and the case
``@rule("Task")``    for a function of one lock task and the case
===================  ========================================================

A rule of nodes or tasks yields findings whose facts are clauses: they read on after the
name of the node or task, without a full stop.
"""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from celery_redlock.basics.command import DOCS
from celery_redlock.operations.doctor.inquiry import Workers
from celery_redlock.operations.inspect import Nodes
from celery_redlock.options.broker import visibility_timeout
from celery_redlock.options.lock_options import lock_tasks
from celery_redlock.settings import setting_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery import Celery, Task

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.inspect import NodeReport
    from celery_redlock.options.lock_options import LockOptions


class Severity(enum.IntEnum):
    """The weight of a finding; the greater, the worse."""

    NOTE = 1
    """Good to know. Nothing is wrong."""
    WARNING = 2
    """Locks are granted and safe, with less to spare than they should have."""
    ERROR = 3
    """Locks are not granted, or two clients may hold one."""

    @property
    def word(self) -> str:
        """Its name for operators."""
        return self.name.lower()


NOTE, WARNING, ERROR = Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that makes locks unsafe, slow or unavailable.

    Attributes:
        code: What kind of thing, in a word that does not change between versions.
        severity: How bad it is.
        fact: What was found, a sentence with its numbers.
        remedy: What to do about it, a sentence or two.
        about: The name of the node or task; ``""`` for the whole deployment.
    """

    code: str
    severity: Severity
    fact: str
    remedy: str
    about: str = ""

    def of(self, kind: str, name: str) -> Finding:
        """Return the finding about this node or task: its fact is a clause so far."""
        return replace(self, fact=f"{kind} {name} {self.fact}.", about=name)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        severity, address = self.severity.word, address_of(self.code)
        return {**asdict(self), "severity": severity, "address": address}

    def __str__(self) -> str:
        return f"{self.fact} {self.remedy} [{self.code}]"


def address_of(code: str) -> str:
    """Return the address of the page that describes findings with this code."""
    return f"{DOCS}reference/findings.md#{code}"


def worst_of(findings: Iterable[Finding]) -> Severity | None:
    """Return the greatest severity; None if there are no findings."""
    return max((finding.severity for finding in findings), default=None)


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in which those that say the same of several tasks are one.

    For readers of texts. The finding is about the first task, and names the others.
    """
    alike: dict[Finding, list[Finding]] = {}
    for finding in findings:
        fact = finding.fact.replace(finding.about, "", 1)
        alike.setdefault(replace(finding, fact=fact, about=""), []).append(finding)
    made = []
    for first, *others in alike.values():
        fact = first.fact
        if others:
            fact += f" The same is true of {', '.join(one.about for one in others)}."
        made.append(replace(first, fact=fact))
    return made


def as_sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    return f"{clause[0].upper()}{clause[1:]}."


class LockTask(NamedTuple):
    """A task that takes a lock, and the seconds after which it is killed, or None."""

    task: Task
    options: LockOptions
    ttl: float
    limit: float | None


@dataclass(frozen=True)
class Case:
    """A deployment as it was found, in node order, and the app that uses it.

    The rules go by the settings of the lock service.
    """

    redlock: Redlock
    reports: Sequence[NodeReport]
    app: Celery | None = None

    @property
    def ignored(self) -> frozenset[str]:
        """The codes of the findings that the project has decided about."""
        conf = self.app.conf if self.app else {}
        return frozenset(setting_in(conf, "redlock_doctor_ignore") or ())

    @property
    def nodes(self) -> Nodes:
        """The nodes, without what was found by a thorough inspection."""
        statuses = [report.status for report in self.reports]
        return Nodes(statuses, self.redlock.quorum, self.redlock.guard.config)

    @property
    def lock_tasks(self) -> list[LockTask]:
        """The app's tasks that take a lock, by name."""
        found = []
        if self.app is None:
            return []
        for task in lock_tasks(self.app):
            ttl = task.lock_options.ttl or self.redlock.timing.ttl
            limit = task.time_limit or self.app.conf.task_time_limit
            limit = None if limit is None else float(limit)
            found.append(LockTask(task, task.lock_options, ttl, limit))
        return found

    @cached_property
    def workers(self) -> Workers:
        """The app's running workers."""
        return Workers(self.app)

    @property
    def visibility_timeout(self) -> float:
        """Seconds after which the broker redelivers an unacknowledged message."""
        return visibility_timeout(self.app) if self.app else math.inf


@dataclass(frozen=True, slots=True)
class Rule:
    """A function that looks at a case and yields findings.

    Attributes:
        look: The function.
        each: What it is called for: ``"Node"``, ``"Task"`` or ``""``, the case.
        offline: Whether it needs no network: it looks at settings and tasks only.
        skipped_at_start: Whether a worker that starts leaves it out, as a rule because
            it logs the same facts itself.
    """

    look: Callable[..., Iterator[Finding]]
    each: str
    offline: bool
    skipped_at_start: bool

    def __call__(self, case: Case) -> Iterator[Finding]:
        """Yield what the function finds."""
        if not self.each:
            yield from self.look(case)
            return
        things: list[tuple[str, Any]] = [(it.label, it) for it in case.reports]
        if self.each == "Task":
            things = [(it.task.name, it) for it in case.lock_tasks]
        for name, thing in things:
            for found in self.look(thing, case):
                yield found.of(self.each, name)


def rule(
    each: Literal["", "Node", "Task"] = "",
    *,
    offline: bool = False,
    skipped_at_start: bool = False,
) -> Callable[[Callable[..., Iterator[Finding]]], Rule]:
    """Make the decorated function a rule; see `Rule`. Those of tasks are offline."""
    return lambda look: Rule(look, each, offline or each == "Task", skipped_at_start)
