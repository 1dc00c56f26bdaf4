"""The code of docs/how-to/testing.md runs: it is a project with tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "testing.md"
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = dict(BLOCK.findall(PAGE.read_text("utf-8")))
TESTS = sorted(name for name in FILES if name.startswith("test_"))


def test_page_has_six_files() -> None:
    """It has one test file for each level, and one more for a worker in a thread."""
    assert sorted(FILES) == ["conftest.py", "shop.py", *TESTS]
    assert len(TESTS) == 4
    assert "one project of six files" in PAGE.read_text("utf-8")


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("name", TESTS)
def test_page_runs(pytester: pytest.Pytester, name: str) -> None:
    """All tests of the page pass, in a project without any other configuration."""
    for other in ("conftest.py", "shop.py", name):
        (pytester.path / other).write_text(FILES[other])
    tests = len(re.findall(r"^def test_", FILES[name], re.MULTILINE))

    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "--strict-markers")
    done = pytester.runpytest_subprocess(*options)

    done.assert_outcomes(passed=tests)
