"""What a diagnosis of real servers finds, so that tests can look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.diagnostics import Severity, diagnose
from tests.nodes.support import client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.devnodes import DevNode, DevNodes
    from celery_redlock.diagnostics import Finding

__all__ = ["ERROR", "NOTE", "WARNING", "codes", "found_on", "label", "the"]

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR
AS_ALWAYS = {"one-host"}  # these are tests: all nodes are on this machine


def found_on(nodes: DevNodes | Sequence[Any], **options: Any) -> list[Finding]:
    """Return what a diagnosis of these nodes finds."""
    with client(nodes, **options) as redlock:
        return diagnose(redlock, span=0.05)


def the(code: str, findings: Sequence[Finding]) -> Finding:
    """Return the only finding of this kind; there must be a fact and a remedy."""
    (finding,) = [finding for finding in findings if finding.code == code]
    assert finding.fact.endswith(".")
    assert finding.remedy.rstrip(")").endswith(".")
    return finding


def codes(findings: Sequence[Finding]) -> set[str]:
    """Return what kinds of things were found, besides what always is."""
    return {finding.code for finding in findings} - AS_ALWAYS


def label(node: DevNode) -> str:
    """Return what the node is called."""
    return f"127.0.0.1:{node.port}/0"
