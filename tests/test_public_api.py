"""The door, and what comes through it: names, documentation, errors."""

from __future__ import annotations

import ast
import importlib
import pickle
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.backends.base import Backend

import celery_redlock
from celery_redlock import errors
from celery_redlock.core.ballot import Ballot, Vote, VoteKind
from celery_redlock.core.lease import Holder

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_NAMES = 25
PACKAGE = Path(errors.__file__).parent
NAME = PACKAGE.name
# Programs and plug-ins, which need not be importable: an extra may be absent.
LEAVES = ("cli", "contrib", "demo", "metrics", "pytest_plugin", "tracing")


def module_names() -> Iterator[str]:
    """Return the full names of the modules that one imports from."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in LEAVES:
            yield ".".join((NAME, *parts)).removesuffix(".__init__")


MODULES = list(module_names())


# -- Names -----------------------------------------------------------------------


def public_definitions(name: str) -> dict[str, ast.AST]:
    """Return what a module defines for others: functions, classes, their methods."""
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


@pytest.mark.parametrize("name", MODULES)
def test_module_says_what_is_public(name: str) -> None:
    """`__all__` has each public function and class of a module, once."""
    module = importlib.import_module(name)
    public = getattr(module, "__all__", [])
    defined = {own for own in public_definitions(name) if "." not in own}

    assert sorted(set(public)) == sorted(public)
    assert [own for own in public if not hasattr(module, own)] == []
    assert defined <= set(public)


@pytest.mark.parametrize("name", MODULES)
def test_module_documents_what_is_public(name: str) -> None:
    """Each public function, class and method says what it is for."""
    module = importlib.import_module(name)
    silent = {
        own
        for own, node in public_definitions(name).items()
        if not ast.get_docstring(node)  # type: ignore[arg-type]
    }

    assert module.__doc__
    assert silent == set()


def test_door_is_small_and_sorted() -> None:
    """The package offers at most 25 names, classes before functions."""
    names = celery_redlock.__all__

    assert len(names) <= MAX_NAMES
    assert list(names) == sorted(set(names))


def test_door_is_complete() -> None:
    """What one finds in the package and can use is in `__all__`, and the reverse."""
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


def test_door_refuses_an_unknown_name() -> None:
    """A name that the package does not have is an AttributeError, as anywhere."""
    name = "no_such_name"

    with pytest.raises(AttributeError, match=name):
        getattr(celery_redlock, name)


# -- Errors ----------------------------------------------------------------------


def ballot() -> Ballot:
    """Return the ballot of an attempt that found the key taken."""
    votes = Ballot(["redis-a:6379/0", "redis-b:6379/0", "redis-c:6379/0"])
    votes.cast(0, Vote(VoteKind.TAKEN, 1500, "base.attempt\n7"))
    votes.cast(1, Vote(VoteKind.SILENT, reason="refused the connection"))
    return votes


# Whatever an error may carry. An error takes those that it has an attribute for.
EXTRAS: dict[str, Any] = {
    "key": "invoice:42",
    "ballot": ballot(),
    "holder": Holder("base.attempt", 7, "send_invoice", "id", "host", 4711, 1.5),
    "retry_after": 1.5,
    "fence": 7,
    "latest": 8,
}
ALL_ERRORS = [getattr(errors, name) for name in errors.__all__]


def make(kind: type[errors.RedlockError]) -> errors.RedlockError:
    """Return an error with a message and all the extras that it can have."""
    extras = {name: value for name, value in EXTRAS.items() if hasattr(kind, name)}
    return kind("Fact, 1 of 3. What holds. Remedy.", **extras)


def extras_of(error: BaseException) -> dict[str, Any]:
    """Return what an error carries beside its message, in a comparable form."""
    named = {name: getattr(error, name, None) for name in EXTRAS}
    return {**named, "ballot": repr(named["ballot"])}


def test_errors_are_one_tree() -> None:
    """Every error of the package is a RedlockError, and every one is listed."""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }

    assert defined == set(errors.__all__)
    assert all(issubclass(kind, errors.RedlockError) for kind in ALL_ERRORS)


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_error_rebuilds_from_its_args(kind: type[errors.RedlockError]) -> None:
    """`type(e)(*e.args)` is how other people's code copies an exception."""
    error = make(kind)

    again = type(error)(*error.args)

    assert again.args == error.args == ("Fact, 1 of 3. What holds. Remedy.",)
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", ALL_ERRORS)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_error_pickles_with_its_extras(
    kind: type[errors.RedlockError], protocol: int
) -> None:
    """An error comes whole out of a pickle, and so out of a worker's child."""
    error = make(kind)

    again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301  (made here)

    assert type(again) is kind
    assert again.args == error.args
    assert extras_of(again) == extras_of(error)
    assert any(value is not None for value in vars(again).values()) == any(
        hasattr(kind, name) for name in EXTRAS
    )


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_error_survives_a_json_result_backend(kind: type[errors.RedlockError]) -> None:
    """A client of the result gets the same type with the same message."""
    backend = Backend(Celery(set_as_current=False), serializer="json")
    error = make(kind)

    stored = backend.encode(backend.prepare_exception(error))
    again = backend.exception_to_python(backend.decode(stored))

    assert type(again) is kind
    assert again.args == error.args
    assert set(extras_of(again).values()) <= {None, "None"}
