"""The house: which module may know which other one."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import celery_redlock.core

if TYPE_CHECKING:
    from collections.abc import Iterator

# A module imports only from the lines above its own. A star stands for a package
# and all that is in it, which may import each other. Of what is in the last line,
# delete one, and nothing else changes.
HOUSE = """
    errors core contrib core.clock core.wire logs
    core.voice fingerprint core.scripts.* core.ballot core.lease core.address
    core.timing
    checks
    situations core.question core.link core.failure
    core.probe policies uniqueness succession
    core.survey core.permissions core.removal
    core.debts core.connector core.agenda core.waiting
    settings options core.node core.extension core.wakeup core.inbox
    core.fanout
    core.fence
    core.guard core.commands core.deployment
    core.redlock core.reservations
    core.renewal core.reconfiguration core.examination
    leadership slots claims buffering cancelling
    locking election devnodes.* diagnostics.*
    testing.*
    signals envelope masking announcer observing
    runtime
    interrupt beat.*
    request
    outcome tasklock publishing
    call
    notices explain
    following
    admission
    execution
    task
    decorator
    celery_redlock
    cli.* contrib.django.* contrib.sqlalchemy demo.* metrics.* pytest_plugin tracing
"""
PLACES = {
    place: rank
    for rank, line in enumerate(HOUSE.strip().splitlines())
    for place in line.split()
}
WITHOUT_CELERY = [
    "errors",
    "fingerprint",
    "core",
    "devnodes",
    "locking",
    "election",
    "testing",
    "diagnostics",
]
MAX_LINES = 330

PACKAGE = Path(celery_redlock.core.__file__).parents[1]
NAME = PACKAGE.name


def modules() -> dict[str, Path]:
    """Return the package's modules by their names below the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name or NAME] = path
    return found


MODULES = modules()


def place_of(module: str) -> str:
    """Return where in the house a module is, or fail if it has no place there."""
    for place in PLACES:
        if module == place:
            return place
        if place.endswith(".*") and f"{module}.".startswith(place[:-1]):
            return place
    pytest.fail(f"{module} is not in the table: give it a place")


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree and leave out what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith(
            "TYPE_CHECKING"
        ):
            for statement in child.orelse:
                yield from runtime_nodes(statement)
        else:
            yield from runtime_nodes(child)


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return the full names of all that a module imports, also inside functions."""
    found = set()
    for node in runtime_nodes(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import in line {node.lineno}"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                known = inner.removeprefix(f"{NAME}.") in MODULES
                found.add(inner if known else str(node.module))
    return frozenset(found)


def ours(module: str) -> set[str]:
    """Return the modules of the package that a module imports."""
    names = {name for name in imports_of(module) if f"{name}.".startswith(f"{NAME}.")}
    return {name.removeprefix(f"{NAME}.") for name in names}


@pytest.mark.parametrize("module", MODULES)
def test_module_has_a_place_in_the_house(module: str) -> None:
    """Every module of the package is in the table."""
    assert place_of(module) in PLACES


@pytest.mark.parametrize("module", MODULES)
def test_module_depends_on_lower_ranks_only(module: str) -> None:
    """A module imports nothing of its own rank or above, not even in a function."""
    here = place_of(module)
    for imported in ours(module):
        there = place_of(imported)
        allowed = there == here or PLACES[there] < PLACES[here]
        assert allowed, f"{module} imports {imported}"


def test_imports_go_in_no_circle() -> None:
    """There is an order in which the modules can be read."""
    order = TopologicalSorter({module: ours(module) for module in MODULES})

    order.prepare()


@pytest.mark.parametrize("module", MODULES)
def test_module_is_short(module: str) -> None:
    """A module can be read in one sitting."""
    lines = len(MODULES[module].read_text().splitlines())

    assert lines <= MAX_LINES, f"{module} has {lines} lines and wants splitting"


@pytest.mark.parametrize("root", WITHOUT_CELERY)
def test_celery_is_unknown_to(root: str) -> None:
    """Nothing that one uses without Celery names it, however far one follows."""
    todo = [name for name in MODULES if f"{name}.".startswith(f"{root}.")]
    seen = set()
    while todo:
        module = todo.pop()
        if module in seen or module == NAME:
            continue
        seen.add(module)
        todo += ours(module)
        tops = {name.partition(".")[0] for name in imports_of(module)}
        assert "celery" not in tops, f"{module} imports celery"


def test_core_reads_time_in_one_place() -> None:
    """In the core only the clock knows how to ask for the time."""
    readers = {
        module
        for module in MODULES
        if module.startswith("core.") and imports_of(module) & {"time"}
    }

    assert readers == {"core.clock"}


def run_python(program: str) -> str:
    """Run a program in an interpreter of its own and return what it prints."""
    return subprocess.run(  # noqa: S603  (the programs of this file)
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("root", WITHOUT_CELERY)
def test_celery_is_not_loaded_by(root: str) -> None:
    """Importing what one uses without Celery does not load Celery."""
    names = [name for name in MODULES if f"{name}.".startswith(f"{root}.")]
    imports = "".join(f"import {NAME}.{name}\n" for name in names)

    said = run_python(f"{imports}import sys\nprint('celery' in sys.modules)")

    assert said == "False\n"


def test_import_starts_no_thread_and_opens_no_socket() -> None:
    """Importing the package and its core does nothing but define things."""
    said = run_python(
        "import sys\n"
        "watched = ('socket.__new__', 'socket.bind', 'socket.connect',\n"
        "           '_thread.start_new_thread', 'subprocess.Popen', 'os.fork')\n"
        "sys.addaudithook(lambda e, a: e in watched and print(e, a))\n"
        f"import {NAME}, {NAME}.core.redlock, {NAME}.core.renewal\n"
        f"for name in getattr({NAME}, '__all__', ()):\n"
        f"    getattr({NAME}, name)\n"
    )

    assert said == ""
