"""``make release`` refuses what is not ready, and says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.check import ROOT, Failed
from tests.packaging.release import main, problems, refuse_unclean

VERSION = "1.2.3"
FILES = {
    "pyproject.toml": f'[project]\nversion = "{VERSION}"\n',
    "celery_redlock/__init__.py": f'__version__ = "{VERSION}"\n',
    "CITATION.cff": f"cff-version: 1.2.0\nversion: {VERSION}\n",
    "CHANGELOG.md": (
        f"# Changelog\n\n## [{VERSION}] - 2030-01-31\n\n### Upgrade\n\nNothing to do.\n"
        "\n### Added\n\n- More.\n\n## [1.2.2] - 2030-01-01\n\n### Upgrade\n"
    ),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a project that is ready, committed to Git."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    git(tmp_path, *who, "commit", "--quiet", "-m", "All of it")
    return tmp_path


def git(folder: Path, *words: str) -> None:
    """Run Git in a folder."""
    program = shutil.which("git")
    if program is None:
        pytest.skip("git is not installed")
    subprocess.run([program, "-C", folder, *words], check=True)  # noqa: S603


def test_project_that_is_ready_has_no_problems(project: Path) -> None:
    """Nothing keeps it from being released."""
    assert problems(project, VERSION) == []
    refuse_unclean(project, VERSION)


@pytest.mark.parametrize("name", [*FILES])
def test_version_that_is_not_written_is_named_with_its_file(
    project: Path, name: str
) -> None:
    """One sentence for the one file that was forgotten."""
    (said,) = (x for x in problems(changed(project, name, VERSION, "1.2.2"), VERSION))

    assert said.startswith(name)
    assert VERSION in said


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (" - 2030-01-31", "", "no date"),
        ("### Upgrade\n\nNothing to do.", "", "does not begin the section with"),
        ("## [1.2.3]", "## [Unreleased]\n\n- A line.\n\n## [1.2.3]", "move it"),
    ],
)
def test_changelog_that_is_not_ready_is_refused(
    project: Path, old: str, new: str, part: str
) -> None:
    """The section is the first one, with a date, and its upgrade steps come first."""
    (said,) = problems(changed(project, "CHANGELOG.md", old, new), VERSION)

    assert part in said


@pytest.mark.parametrize("version", ["", "v1.2.3", "1.2", "1.2.3 "])
def test_what_is_not_a_version_is_refused(project: Path, version: str) -> None:
    """A tag begins with v, and a version does not."""
    (said,) = problems(project, version)

    assert "VERSION=1.2.3" in said


def test_change_that_is_not_committed_is_refused(project: Path) -> None:
    """The tag would not have it."""
    changed(project, "CHANGELOG.md", "More", "Less")

    with pytest.raises(Failed, match=r"CHANGELOG\.md"):
        refuse_unclean(project, VERSION)


def test_tag_that_exists_is_refused(project: Path) -> None:
    """A published version never changes."""
    git(project, "tag", f"v{VERSION}")

    with pytest.raises(Failed, match="exists"):
        refuse_unclean(project, VERSION)


def test_this_version_could_be_released(capsys: pytest.CaptureFixture[str]) -> None:
    """The files of this project agree; another version is refused before a build."""
    version = (ROOT / "CITATION.cff").read_text("utf-8").split("version: ")[-1].strip()
    if "## [Unreleased]" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        assert problems(ROOT, version) == []

    assert main(["99.0.0", "--dry-run"]) == 1
    assert "Nothing was released." in capsys.readouterr().err


def changed(project: Path, name: str, old: str, new: str) -> Path:
    """Change a file, and return the project."""
    path = project / name
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    return project


def test_actions_are_named_by_commit_or_it_is_said_why_not() -> None:
    """Only a commit cannot be moved by the owner of an action."""
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    used = [line for file in files for line in file.read_text().splitlines()]
    used = [line.partition("uses:")[2].strip() for line in used if "uses:" in line]
    by_tag = [use for use in used if not re.search(r"@[0-9a-f]{40}  # v\d", use)]

    assert len(used) > 10
    assert [use for use in by_tag if not use.endswith("# by tag: see above")] == []
    security = (ROOT / "SECURITY.md").read_text("utf-8")
    named = {re.sub(r"^([^/]*/[^/@]*).*", r"\1", use) for use in by_tag}
    assert [name for name in named if f"`{name}`" not in security] == []
