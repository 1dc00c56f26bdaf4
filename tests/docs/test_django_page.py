"""The project of the page about Django: its files, and its own tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.reader import blocks_of
from tests.harness.programs import end_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "django.md"
TITLE = re.compile(r"# (\S+\.py)\n")
SECOND_DELETION = """
import threading

from reports.tasks import build_report
from reports.views import delete_customer


def test_second_deletion_is_told_of_the_first(redlock_fake, rf):
    answers = []
    delete = lambda: answers.append(delete_customer(rf.post("/"), 7))
    with build_report.lock(7):  # as another request of this view
        thread = threading.Thread(target=delete)
        thread.start()
        thread.join()
    assert (answers[0].status_code, b"deletion" in answers[0].content) == (409, True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give the folder of the project that the page writes."""
    for language, code in blocks_of(PAGE.read_text("utf-8")):
        if language == "python" and (title := TITLE.match(code)):
            file = tmp_path / title[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(code)
    (tmp_path / "reports" / "__init__.py").touch()
    return tmp_path


def test_project_of_the_page_passes_its_tests(project: Path) -> None:
    """All three of them, with pytest-django and no server."""
    done = end_of(
        *(sys.executable, "-m", "pytest", "-q", "--ds=shop.settings"),
        *("-p", "no:cacheprovider", "-p", "no:randomly", "."),
        cwd=project,
    )

    assert "3 passed" in done.stdout


def test_view_of_the_page_names_each_holder_that_it_may_meet(project: Path) -> None:
    """The lock of a task is held by a view, too, which builds no report."""
    (project / "test_second.py").write_text(SECOND_DELETION)

    done = end_of(
        *(sys.executable, "-m", "pytest", "-q", "--ds=shop.settings"),
        *("-p", "no:cacheprovider", "test_second.py"),
        cwd=project,
    )

    assert "1 passed" in done.stdout


@pytest.mark.long
def test_project_of_the_page_passes_its_tests_by_the_runner_of_django(
    project: Path,
) -> None:
    """`manage.py test` needs no server, either, with the runner of the page."""
    done = end_of(
        *(sys.executable, "-m", "django", "test", "--pythonpath", "."),
        *("--settings", "shop.settings", "--testrunner", "shop.runner.LockInMemory"),
        cwd=project,
    )

    assert "Ran 1 test" in done.stderr
