"""Findings: their order, their log lines, and the diagnosis in the background."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redlock import Redlock
from celery_redlock.operations.doctor import (
    Case,
    Finding,
    Severity,
    findings_of,
    log_diagnosis,
    log_findings,
    worst_of,
)
from tests.harness.source import finding_codes

if TYPE_CHECKING:
    import pytest

NOTE = Finding("even-nodes", Severity.NOTE, "There are 4.", "Use 5.")
WARNING = Finding("slow", Severity.WARNING, "It is slow.", "Move it.", "redis-a")
ERROR = Finding("replica", Severity.ERROR, "It is one.", "Use a master.", "redis-b")


def test_worst_of_findings() -> None:
    """It is the greatest severity, and None without findings."""
    assert worst_of([NOTE, ERROR, WARNING]) is Severity.ERROR
    assert worst_of([]) is None


def test_findings_go_to_the_log_by_severity(caplog: pytest.LogCaptureFixture) -> None:
    """A note is an INFO line. Each line ends with the code, and has it as a field."""
    caplog.set_level(logging.INFO)

    log_findings([ERROR, WARNING, NOTE])

    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "WARNING", "INFO"]
    first = caplog.records[0]
    assert first.getMessage() == "It is one. Use a master. [replica]"
    assert vars(first)["redlock_code"] == "replica"
    assert vars(first)["redlock_about"] == "redis-b"


def test_worst_findings_come_first() -> None:
    """Without any report of a node, the lack of a quorum comes first."""
    redlock = Redlock(["redis://127.0.0.1:1", "redis://127.0.0.1:2"])

    found = findings_of(Case(redlock, []))

    severities = [finding.severity for finding in found]
    assert severities == sorted(severities, reverse=True)
    assert found[0].code == "no-quorum"


def test_diagnosis_in_the_background_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It logs the findings, without those that the start of a worker logs itself."""
    redlock = Redlock(["redis://127.0.0.1:1"])

    thread = log_diagnosis(redlock)
    thread.join(30)

    logged = [vars(record).get("redlock_code") for record in caplog.records]
    assert logged == ["few-nodes"]


def test_findings_as_json_are_words() -> None:
    """In JSON, the severity is a word."""
    assert WARNING.as_dict() == {
        "code": "slow",
        "severity": "warning",
        "about": "redis-a",
        "fact": "It is slow.",
        "remedy": "Move it.",
    }


def test_every_code_is_documented() -> None:
    """The table of the page has all codes, and no others."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"
    table = page.read_text(encoding="utf-8").split("| code |")[1].split("\n\n")[0]

    documented = set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE))

    assert documented == finding_codes()
