"""The environments of ``make check-package``, in which little is installed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from tests.packaging.check import FAST, NEEDS, NOT, ON_A_SERVER, ROOT, WITH_HIREDIS

OURS = {"celery_redlock", "tests"}


def test_tests_of_other_versions_import_what_is_installed_there() -> None:
    """They have the package and NEEDS, and no extra."""
    installed = with_dependencies("celery-redlock", *NEEDS)
    missing = [
        f"{file.relative_to(ROOT)}: {module}"
        for file in files()
        for module in modules(file) - OURS - sys.stdlib_module_names
        if not installed & {plain(name) for name in PACKAGES.get(module, ())}
    ]

    assert not missing, "\n".join(missing)


PACKAGES = packages_distributions()


def plain(requirement: str) -> str:
    """Return the name of a package as packages are compared."""
    name = re.split(r"[^\w.-]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def with_dependencies(*requirements: str) -> set[str]:
    """Return the packages that pip installs for these, without their extras."""
    found: set[str] = set()
    left = [*requirements]
    while left:
        name = plain(left.pop())
        if name not in found:
            found.add(name)
            try:
                needed = requires(name) or []
            except PackageNotFoundError:  # for another version of Python
                needed = []
            left += [each for each in needed if "extra ==" not in each]
    return found


def files() -> Iterator[Path]:
    """Yield the files of these tests, helpers among them."""
    left_out = {ROOT / "tests/unit" / name for name in (*NOT, *WITH_HIREDIS)}
    for name in (*FAST, *ON_A_SERVER):
        path = ROOT / name
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            if file not in left_out:
                yield file


def modules(file: Path) -> set[str]:
    """Return the packages that the import of this file imports itself."""
    found = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.partition(".")[0] for name in found}
