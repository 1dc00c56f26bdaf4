"""Prepare a release: check, build, check what was built, tag. It uploads nothing.

``make release VERSION=1.2.3`` calls it, and with ``ARGS=--dry-run`` it makes no tag.
The files are in ``dist/``. Pushing the tag publishes the version:
docs/contributing/releasing.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.packaging.check import ROOT, Failed, check_sdist, check_wheel, run

_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
# Where a version is written, and how.
_WRITTEN = {
    "pyproject.toml": r'^version = "([^"]+)"$',
    "celery_redlock/__init__.py": r'^__version__ = "([^"]+)"$',
    "CITATION.cff": r"^version: (\S+)$",
}


def problems(root: Path, version: str) -> list[str]:
    """Return what keeps this version from being released, with the remedy.

    Args:
        root: The folder of the project.
        version: Such as ``1.2.3``.
    """
    if not _VERSION.fullmatch(version):
        return [f"{version!r} is not a version: write VERSION=1.2.3"]
    found = []
    for name, pattern in _WRITTEN.items():
        text = (root / name).read_text("utf-8")
        written = re.findall(pattern, text, re.MULTILINE)
        if written != [version]:
            found.append(
                f"{name} says {', '.join(written) or 'nothing'}: write {version}"
            )
    return found + _problems_of_changelog(root, version)


def _problems_of_changelog(root: Path, version: str) -> list[str]:
    text = (root / "CHANGELOG.md").read_text("utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    titles = [section.splitlines()[0] for section in sections]
    ours = [s for s in sections if s.startswith(f"[{version}]")]
    if not ours:
        return [f"CHANGELOG.md has no section {version}: rename [Unreleased]"]
    found = []
    if titles.index(ours[0].splitlines()[0]) > 0:
        found.append(f"CHANGELOG.md has {titles[0]} before {version}: move it")
    if not re.match(r"\[[^]]+\] - \d{4}-\d\d-\d\d\n", ours[0]):
        found.append(f"CHANGELOG.md has no date: ## [{version}] - YYYY-MM-DD")
    parts = re.findall(r"^### (.+)$", ours[0], re.MULTILINE)
    if parts[:1] != ["Upgrade"]:
        found.append("CHANGELOG.md does not begin the section with ### Upgrade")
    return found


def refuse_unclean(root: Path, version: str) -> None:
    """Refuse changes that are not committed, and a tag that exists.

    Raises:
        Failed: With what there is.
    """
    changes = _git(root, "status", "--porcelain")
    if changes:
        raise Failed(f"Commit these changes first:\n{changes}")
    if _git(root, "tag", "--list", f"v{version}"):
        raise Failed(f"The tag v{version} exists: choose the next version")


def _git(root: Path, *words: str) -> str:
    command = ("git", "-C", str(root), *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise Failed(f"git {words[0]}: {done.stderr}")
    return done.stdout.strip()


def build_and_check(folder: Path) -> list[Path]:
    """Build sdist and wheel into a folder, and check them and their descriptions."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, seconds=300)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    check_sdist(sdist)
    check_wheel(wheel)
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    return [sdist, wheel]


def release(version: str, *, tag: bool) -> list[Path]:
    """Check and build a version, and tag it. Return the files.

    Raises:
        Failed: It is not ready, with the remedies. There is no tag then.
    """
    if missing := problems(ROOT, version):
        raise Failed("\n".join(missing))
    if tag:
        refuse_unclean(ROOT, version)
    files = ROOT / "dist"
    files.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        built = build_and_check(Path(folder))
        kept = [Path(shutil.copy(path, files)) for path in built]
    if tag:
        _git(ROOT, "tag", "--annotate", f"v{version}", "-m", version)
    return kept


def main(words: list[str] | None = None) -> int:
    """Release, or say what is missing."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="such as 1.2.3")
    parser.add_argument("--dry-run", action="store_true", help="make no tag")
    asked = parser.parse_args(words)
    try:
        kept = release(asked.version, tag=not asked.dry_run)
    except Failed as failed:
        print(f"Nothing was released. {failed}", file=sys.stderr)  # noqa: T201
        return 1
    tag = "no tag was made" if asked.dry_run else f"the tag v{asked.version} is made"
    names = " and ".join(path.name for path in kept)
    print(f"{names} are checked, in dist/; {tag}, and nothing was uploaded.")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
