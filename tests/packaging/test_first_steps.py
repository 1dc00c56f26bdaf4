"""The first steps of a reader: README and tutorial, typed in an empty environment.

The package is installed from a wheel by the commands that the pages show, and nothing
of this checkout is on the path. Only the addresses of the servers are replaced, and the
time in which a node must answer.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from celery_redlock.devnodes.processes import free_port
from tests.docs.reader import Reader, blocks_of, until_said
from tests.docs.test_tutorial import PATIENT, type_the_tutorial
from tests.packaging.check import ENVIRONMENT, PYTHONS, build, pythons

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes

ROOT = Path(__file__).parents[2]
INSTALLED = 240.0  # seconds for pip
BETWEEN = ("3.11", "3.12")  # an older and a newer one show the same
BROKER = "redis://localhost:6379"
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
    """Its two minutes, a call and its duplicate, a beat, the commands to operate."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    intro, minutes, rest = re.split(
        r"^## Two minutes$|^## What happens when", readme, flags=re.MULTILINE
    )
    nodes = start_nodes(3, initialize=False).urls
    (broker,) = start_nodes(1, initialize=False).urls
    reader.replace = {
        f"{BROKER}/0": broker,
        **{
            f"redis://redlock-{x}:6379/0": url
            for x, url in zip("abc", nodes, strict=True)
        },
    }
    reader.run("python3 -m venv .venv")
    reader.activate()

    for language, text in blocks_of(minutes):
        if language == "sh":
            reader.run(text, typed="y\n")
        else:
            reader.append("proj.py", text)
            if "redlock_nodes = " in text:
                reader.append("proj.py", PATIENT)
            said = reader.run("python proj.py") if "lock(redlock" in text else ""
    fence, remaining = said.split()
    assert int(fence) > 0
    assert float(remaining) > 0

    task, calls = (text for language, text in blocks_of(intro) if language == "python")
    reader.append("proj.py", task)
    reader.append("proj.py", "app.conf.result_backend = app.conf.broker_url\n")
    with reader.terminal("celery -A proj worker -c 2 -l INFO", "worker") as worker:
        until_said(worker, r"All (?:3 )?nodes vote")
        results = calls.replace(
            "send_invoice.delay(42)", "results.append(send_invoice.delay(42))"
        )
        program = f"from proj import *\nresults = []\n{results}\n"
        program += (
            "for r in results: r.get(propagate=False, timeout=60); print(r.state)\n"
        )
        reader.append("calls.py", program)
        *_, one, other = reader.run("python calls.py").split()  # proj.py prints, too
        # The task does nothing, so the first call may end before the second begins.
        assert {one, other} in ({"SUCCESS"}, {"SUCCESS", "REVOKED"})

        beat, *operate = (
            line.partition("#")[0].strip()
            for language, text in blocks_of(rest)
            if language == "sh"
            for line in text.splitlines()
        )
        with reader.terminal(beat, "beat") as sent:
            until_said(sent, r"beat v.* is starting")
        for command in operate:
            if command.endswith(" web"):
                with reader.terminal(f"{command} --port {free_port()}", "web") as page:
                    until_said(page, r"at http://127\.0\.0\.1:\d+/")
            else:
                assert "Traceback" not in reader.run(command, 0, 1)
    assert is_outside(reader)
