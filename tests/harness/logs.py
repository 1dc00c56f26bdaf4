"""Shows what processes have logged during a test that fails.

A conftest imports the two functions.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.harness.processes import LocalProcess

_MARKS = pytest.StashKey[dict[str, int]]()


@pytest.fixture(autouse=True)
def log_marks(request: pytest.FixtureRequest) -> None:
    """Remember how much each process had logged before the test."""
    request.node.stash[_MARKS] = {
        process.id: len(process.logs()) for process in LocalProcess.started
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what the processes have logged during the test."""
    report = yield
    if report.failed:
        marks = item.stash.get(_MARKS, {})
        for process in LocalProcess.started:
            text = process.logs()[marks.get(process.id, 0) :]
            if text.strip():
                report.sections.append((f"Log of {process.name}", text))
    return report
