"""The first steps of a reader: README and tutorial, typed in an empty environment.

The package is installed from a wheel by the commands that the pages show, and nothing
of this checkout is on the path. The addresses of the servers are replaced, the time in
which a node must answer, and the length of a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_redlock.devnodes import DevNodes
from tests.docs.reader import Reader
from tests.docs.test_tutorial import type_the_tutorial
from tests.packaging.check import ENVIRONMENT, PYTHONS, build, pythons
from tests.test_readme import INSTALL, type_the_readme

ROOT = Path(__file__).parents[2]
INSTALLED = 240.0  # seconds for pip
BETWEEN = ("3.11", "3.12")  # an older and a newer one show the same
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the package as it would be released."""
    return build(tmp_path_factory.mktemp("first-steps")).wheel


@pytest.fixture
def python(request: pytest.FixtureRequest) -> Path:
    """Give the Python that the reader has: that of the tests, or another version."""
    version = getattr(request, "param", None)
    if version is None:
        return Path(sys.executable)
    found = pythons().get(version)
    if found is None:
        pytest.skip(f"Python {version} is not installed")
    return found


@pytest.fixture
def reader(wheel: Path, tmp_path: Path, redis_server: str, python: Path) -> Reader:
    """Give a reader for whom ``pip install celery-redlock`` installs the wheel."""
    folder = tmp_path / "folder"
    folder.mkdir()
    environment = {
        name: value
        for name, value in ENVIRONMENT.items()
        if name not in ("VIRTUAL_ENV", "PYTHONHOME")
    }
    environment |= {
        "PATH": os.pathsep.join([str(python.parent), os.defpath]),
        "PIP_FIND_LINKS": f"{wheel.parent} {os.environ.get('PIP_FIND_LINKS', '')}",
        "REDLOCK_REDIS_SERVER": redis_server,
    }
    return Reader(folder, environment, patience=INSTALLED)


def is_outside(reader: Reader) -> bool:
    """Tell whether Python imports the installed package, and not this checkout."""
    program = "import celery_redlock; print(celery_redlock.__file__)"
    return str(ROOT) not in reader.run(f"python -c '{program}'")


def test_tutorial_can_be_typed_in_an_empty_folder(reader: Reader) -> None:
    """All blocks, with those that install the package and activate its environment."""
    commands = type_the_tutorial(reader, installed=True)

    assert len(commands) > 9
    assert is_outside(reader)


@pytest.mark.parametrize(
    "python",
    [
        *(pytest.param(version) for version in PYTHONS if version not in BETWEEN),
        *(pytest.param(version, marks=pytest.mark.exhaustive) for version in BETWEEN),
    ],
    indirect=True,
)
def test_readme_can_be_typed_in_an_empty_folder(
    reader: Reader, start_nodes: Callable[..., DevNodes]
) -> None:
    """Its installation and its first example."""
    (redis,) = start_nodes(1, initialize=False).urls
    reader.run("python3 -m venv .venv")
    reader.activate()
    reader.run(INSTALL)

    type_the_readme(reader, redis)

    assert is_outside(reader)
