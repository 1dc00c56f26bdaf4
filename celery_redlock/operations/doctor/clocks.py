"""Clocks that differ or drift, and nodes that answer late."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from celery_redlock.operations.doctor.finding import ERROR, WARNING, Finding
from celery_redlock.operations.doctor.rule import Problem, node_rule, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.operations.doctor.case import Case
    from celery_redlock.operations.inspect import NodeReport

__all__ = ["client_clock", "clock_drift", "latency", "node_clock"]

_MS = 1000
_DRIFT_ALLOWED, _DRIFT_ODD = 0.01, 0.005
_CLOCKS_APART = 1.0  # seconds


@rule()
def client_clock(case: Case) -> Iterator[Finding]:
    """Find that the clock of this machine differs from those of the nodes."""
    tolerance = case.redlock.guard.hint_tolerance_us / 1e6
    ahead = _usual_ahead(case)
    if abs(ahead) > tolerance:
        yield Finding(
            "client-clock",
            WARNING,
            f"The clock of this machine is {_apart(-ahead)} those of the nodes. A "
            f"difference of more than {tolerance:g} s (max_ttl / 4) makes its time "
            "useless as a hint for fences.",
            "Set it by NTP. Until then fences may take a second round trip.",
        )


@node_rule()
def node_clock(report: NodeReport, case: Case) -> Iterator[Problem]:
    """Find clocks that differ from those of most nodes."""
    ahead = report.clock.ahead - _usual_ahead(case)
    if report.clock.latencies and abs(ahead) > _CLOCKS_APART:
        yield Problem(
            "node-clock",
            WARNING,
            f"has a clock that is {_apart(ahead)} those of most nodes",
            "Set it by NTP, slewing and not stepping: after a step forward its locks "
            "expire early.",
        )


@node_rule()
def clock_drift(report: NodeReport, _: Case) -> Iterator[Problem]:
    """Find clocks that run at another rate."""
    drift = report.clock.drift
    if abs(drift) > _DRIFT_ODD:
        yield Problem(
            "clock-drift",
            ERROR if abs(drift) > _DRIFT_ALLOWED else WARNING,
            f"has a clock that runs {abs(drift):.1%} too "
            f"{'fast' if drift > 0 else 'slow'}; locks allow for 1 %",
            "Repair the clock of its machine, or move the node. With a fast clock, "
            "locks expire before their holders notice.",
        )


def _usual_ahead(case: Case) -> float:
    """Return by how many seconds the clocks of most nodes are ahead of ours."""
    clocks = [report.clock for report in case.reports if report.clock.latencies]
    return median(clock.ahead for clock in clocks) if clocks else 0.0


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


@node_rule()
def latency(report: NodeReport, case: Case) -> Iterator[Problem]:
    """Find nodes whose answers are often too late to count."""
    timeout = case.redlock.timing.node_timeout
    usual = median(report.clock.latencies or (0.0,))
    if usual > timeout / 2:
        yield Problem(
            "slow",
            WARNING,
            f"usually takes {usual * _MS:.3g} ms to answer; redlock_node_timeout is "
            f"{timeout * _MS:.3g} ms",
            "Move the node closer, or raise redlock_node_timeout to several times "
            "what a node takes.",
        )
