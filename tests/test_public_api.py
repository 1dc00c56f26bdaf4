"""The public names of the package and of its modules, and their docstrings."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import celery_redlock
from celery_redlock import errors
from tests.nodes.support import run_python

MAX_NAMES = 25
PACKAGE = Path(errors.__file__).parent
NAME = PACKAGE.name
# Programs and plug-ins. They may need an extra that is not installed.
LEAVES = ("cli", "contrib", "metrics", "pytest_plugin", "tracing")


def module_names() -> Iterator[str]:
    """Yield the full names of the modules that users can import."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in LEAVES:
            yield ".".join((NAME, *parts)).removesuffix(".__init__")


MODULES = list(module_names())


# -- Names -----------------------------------------------------------------------


def public_definitions(name: str) -> dict[str, ast.AST]:
    """Return the public functions, classes and methods of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    source = Path(str(importlib.import_module(name).__file__)).read_text()
    found: dict[str, ast.AST] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, kinds) or node.name.startswith("_"):
            continue
        found[node.name] = node
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, kinds) and not inner.name.startswith("_"):
                found[f"{node.name}.{inner.name}"] = inner
    return found


def test_packages_and_public_modules_list_their_public_names() -> None:
    """`__all__` has functions and classes; of a package, perhaps its files.

    A file inside a package needs no list: its names without an underscore are for the
    other files.
    """
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None)
        if public is None:
            assert name.count(".") > 1, name
            assert not hasattr(module, "__path__"), name
            continue
        files = {other for other in MODULES if other.rpartition(".")[0] == name}
        known = {*vars(module), *dir(module), *(f.rpartition(".")[2] for f in files)}
        defined = {own for own in public_definitions(name) if "." not in own}

        assert sorted(set(public)) == sorted(public), name
        assert defined <= set(public) <= known, name


def test_modules_document_their_public_names() -> None:
    """Modules, public functions, classes and methods have a docstring."""
    silent = {
        f"{name}.{own}"
        for name in MODULES
        for own, node in public_definitions(name).items()
        if not ast.get_docstring(node)  # type: ignore[arg-type]
    }

    assert silent == set()
    assert [m for m in MODULES if not importlib.import_module(m).__doc__] == []


def test_package_exports_few_names_in_order() -> None:
    """The package exports at most 25 names, classes before functions."""
    names = celery_redlock.__all__

    assert len(names) <= MAX_NAMES
    assert list(names) == sorted(set(names))


def test_package_exports_all_its_public_names() -> None:
    """Each public name of the package is in `__all__`, and each name there exists."""
    offered = {name: getattr(celery_redlock, name) for name in celery_redlock.__all__}
    found = {name: getattr(celery_redlock, name) for name in dir(celery_redlock)}
    ours = {
        name
        for name, value in found.items()
        if not name.startswith("_")
        and str(getattr(value, "__module__", "")).startswith(NAME)
    }

    assert ours <= set(offered) <= set(found)
    assert not [n for n, value in offered.items() if isinstance(value, ModuleType)]


def test_publishing_loads_neither_redis_nor_the_worker() -> None:
    """A web process that only publishes loads only what it uses."""
    said = run_python(
        "import sys\n"
        "from celery_redlock import singleton_task\n"
        "heavy = {'redis', 'celery.worker.request', 'celery_redlock.locks.redlock'}\n"
        "print(heavy & sys.modules.keys())\n"
    )

    assert said == ["set()"]


def test_package_refuses_an_unknown_name() -> None:
    """An unknown name is an AttributeError, as in any module."""
    name = "no_such_name"

    with pytest.raises(AttributeError, match=name):
        getattr(celery_redlock, name)
