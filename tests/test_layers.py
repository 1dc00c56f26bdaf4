"""The house: which package may know which other one, and what each one exports."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import celery_redlock.locks
from tests.harness.programs import end_of

# Packages that find their files by themselves: naming them would be one more place.
FIND_THEIR_FILES = {"cli", "operations.doctor"}
LOCK_ROOMS = {
    *("basics", "scripts", "stores", "wire", "members", "locks", "line", "records")
}
WITHOUT_CELERY = sorted(
    {*LOCK_ROOMS, "devnodes", "election", "errors", "locking", "testing"}
)

PACKAGE = Path(celery_redlock.locks.__file__).parents[1]
NAME = PACKAGE.name
PAGE = Path(__file__).parents[1] / "docs" / "contributing" / "architecture.md"


def order_of_rooms() -> list[str]:
    """Return the rooms from top to bottom, as the page of the architecture lists them.

    A room is a package, or a module directly in the package.
    """
    text = PAGE.read_text(encoding="utf-8")
    block = text.partition(f"```text\n{NAME}/\n")[2].partition("```")[0]
    rooms = re.findall(r"^  (\w+)", block, flags=re.MULTILINE)
    return [NAME if room == "__init__" else room for room in rooms]


# A module imports from its own room and from rooms with a lower rank, also for type
# checkers.
RANKS = {room: rank for rank, room in enumerate(reversed(order_of_rooms()))}


def modules() -> dict[str, Path]:
    """Return the package's modules by their names below the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name or NAME] = path
    return found


MODULES = modules()
PACKAGES = {name for name, path in MODULES.items() if path.stem == "__init__"} - {NAME}


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return the full names of all that a module imports, wherever it does so."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import in line {node.lineno}"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                known = inner.removeprefix(f"{NAME}.") in MODULES
                found.add(inner if known else str(node.module))
    return frozenset(found)


def own_imports_of(module: str) -> set[str]:
    """Return the modules of this package that a module imports."""
    names = {name for name in imports_of(module) if f"{name}.".startswith(f"{NAME}.")}
    return {name.removeprefix(f"{NAME}.") for name in names}


def room_of(module: str) -> str:
    """Return the room that a module belongs to."""
    return module.partition(".")[0]


def test_rooms_have_a_line() -> None:
    """The page lists each room once: each package, and each module beside them."""
    assert sorted(order_of_rooms()) == sorted({room_of(module) for module in MODULES})


def test_modules_import_downwards_only() -> None:
    """A module imports from its own room and from rooms below it in the list."""
    upwards = {
        f"{module} imports {imported}"
        for module in MODULES
        for imported in own_imports_of(module)
        if room_of(imported) != room_of(module)
        and RANKS[room_of(imported)] >= RANKS[room_of(module)]
    }

    assert upwards == set()


def test_imports_form_no_circle() -> None:
    """There is an order in which the modules can be read, type hints included."""
    TopologicalSorter({module: own_imports_of(module) for module in MODULES}).prepare()


def test_packages_form_no_circle() -> None:
    """There is an order in which packages inside a package can be read as a whole."""

    def place(module: str) -> str:
        inside = [name for name in PACKAGES if f"{module}.".startswith(f"{name}.")]
        deepest = max(inside, key=len, default=module)
        return deepest if "." in deepest else module

    order: dict[str, set[str]] = {}
    for module in MODULES:
        others = {place(imported) for imported in own_imports_of(module)}
        order.setdefault(place(module), set()).update(others - {place(module)})

    TopologicalSorter(order).prepare()


@pytest.mark.parametrize("package", sorted(PACKAGES - FIND_THEIR_FILES))
def test_package_introduces_itself(package: str) -> None:
    """The docstring of a package's `__init__` names each file in it."""
    text = ast.get_docstring(ast.parse(MODULES[package].read_text())) or ""
    files = {
        name.removeprefix(f"{package}.")
        for name in MODULES
        if name.startswith(f"{package}.") and name.count(".") == package.count(".") + 1
    }

    assert {name for name in files if name not in text} == set()


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_inner_files_are_imported_by_no_other_package(package: str) -> None:
    """Outside of a package only those files are imported that it exports."""
    exported = set(getattr(sys.modules.get(f"{NAME}.{package}"), "__all__", ()))
    tree = ast.parse(MODULES[package].read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = set(ast.literal_eval(node.value))
    inner = {
        f"{importer} imports {imported}"
        for importer in MODULES
        if not f"{importer}.".startswith(f"{package}.")
        for imported in own_imports_of(importer)
        if imported.startswith(f"{package}.")
        and imported.removeprefix(f"{package}.").partition(".")[0] not in exported
    }

    assert inner == set()


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
        todo += own_imports_of(module)
        tops = {name.partition(".")[0] for name in imports_of(module)}
        assert "celery" not in tops, f"{module} imports celery"


def test_lock_reads_time_in_one_place() -> None:
    """In the rooms of the lock only the clock knows how to ask for the time."""
    readers = {
        module
        for module in MODULES
        if room_of(module) in LOCK_ROOMS and imports_of(module) & {"time"}
    }

    assert readers == {"basics.clock"}


def run_python(program: str) -> str:
    """Run a program in an interpreter of its own and return what it prints."""
    return end_of(sys.executable, "-c", program).stdout


def test_celery_is_not_loaded_by_what_does_not_need_it() -> None:
    """Importing what one uses without Celery does not load Celery."""
    names = [name for name in MODULES if room_of(name) in WITHOUT_CELERY]
    imports = "".join(f"import {NAME}.{name}\n" for name in names)

    said = run_python(f"{imports}import sys\nprint('celery' in sys.modules)")

    assert names
    assert said == "False\n"


def test_import_starts_no_thread_and_opens_no_socket() -> None:
    """Importing the package and its lock does nothing but define things."""
    said = run_python(
        "import sys\n"
        "watched = ('socket.__new__', 'socket.bind', 'socket.connect',\n"
        "           '_thread.start_new_thread', 'subprocess.Popen', 'os.fork')\n"
        "sys.addaudithook(lambda e, a: e in watched and print(e, a))\n"
        f"import {NAME}, {NAME}.locks.redlock, {NAME}.locks.watchdog\n"
        f"for name in getattr({NAME}, '__all__', ()):\n"
        f"    getattr({NAME}, name)\n"
    )

    assert said == ""
