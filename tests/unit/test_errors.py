"""The errors: one tree, drawn in the docstring, each caught by its remedy."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.backends.base import Backend

from celery_redlock import errors
from celery_redlock.errors import (
    ConfigurationError,
    DuplicateTask,
    FingerprintError,
    LeaseError,
    LockCancelled,
    LockContended,
    LockHeld,
    LockLost,
    LockUnavailable,
    NotHolder,
    QuorumUnreachable,
    RedlockError,
    StaleFence,
)
from celery_redlock.locks.lease import Holder
from celery_redlock.wire.quorum import Ballot, Vote, VoteKind


def drawn_tree() -> dict[str, str]:
    """Return each error that the module's docstring draws, with its parent."""
    found, path = {}, ["Exception"]
    for line in str(errors.__doc__).splitlines():
        if match := re.match(r"    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)", line):
            depth = len(match[1]) // 4
            path[depth + 1 :] = [match[2]]
            found[match[2]] = path[depth]
    return found


def test_tree_is_as_it_is_drawn() -> None:
    """The picture in the docstring shows every error below its base class."""
    real = {name: getattr(errors, name).__mro__[1].__name__ for name in errors.__all__}

    assert drawn_tree() == real


@pytest.mark.parametrize(
    ("family", "others", "kinds"),
    [
        # Nothing is held: try later.
        (
            LockUnavailable,
            LeaseError,
            (LockHeld, DuplicateTask, LockContended, QuorumUnreachable),
        ),
        # The lease is lost: stop writing.
        (LeaseError, LockUnavailable, (LockLost, LockCancelled, NotHolder)),
        # A mistake of the programmer.
        (
            RedlockError,
            (LockUnavailable, LeaseError),
            (ConfigurationError, FingerprintError, StaleFence),
        ),
    ],
)
def test_errors_with_one_remedy_are_one_family(
    family: type, others: Any, kinds: tuple[type, ...]
) -> None:
    """A caller catches the errors that it can handle, and no others."""
    assert all(issubclass(kind, family) for kind in kinds)
    assert not any(issubclass(kind, others) for kind in kinds)


@pytest.mark.parametrize("name", errors.__all__)
def test_extras_are_optional(name: str) -> None:
    """An error needs no extras, and not even a message; extras are None by default."""
    kind: type[RedlockError] = getattr(errors, name)
    error = kind("It happened.")

    assert str(error) == "It happened."
    assert str(kind()) == ""
    assert vars(error).keys() <= {"key", "ballot", "holder", "retry_after"} | {
        "fence",
        "latest",
        "by",
    }
    assert set(vars(error).values()) <= {None}


def ballot() -> Ballot:
    """Return the ballot of an attempt that found the key taken."""
    votes = Ballot(["redis-a:6379/0", "redis-b:6379/0", "redis-c:6379/0"])
    votes.cast(0, Vote(VoteKind.TAKEN, 1500, "base.attempt\n7"))
    votes.cast(1, Vote(VoteKind.SILENT, reason="refused the connection"))
    return votes


# Extras for errors. Each error takes the extras that it has an attribute for.
EXTRAS: dict[str, Any] = {
    "key": "invoice:42",
    "ballot": ballot(),
    "holder": Holder("base.attempt", 7, "send_invoice", "id", "host", 4711, 1.5),
    "retry_after": 1.5,
    "fence": 7,
    "latest": 8,
}
MESSAGE = "Fact, 1 of 3. What holds. Remedy."


@pytest.fixture(params=errors.__all__)
def error(request: pytest.FixtureRequest) -> RedlockError:
    """Give each error, with a message and all the extras that it takes."""
    kind = getattr(errors, request.param)
    extras = {name: value for name, value in EXTRAS.items() if hasattr(kind, name)}
    made: RedlockError = kind(MESSAGE, **extras)
    assert {name: getattr(made, name) for name in extras} == extras
    return made


def extras_of(error: BaseException) -> dict[str, Any]:
    """Return the extras of an error, in a comparable form."""
    named = {name: getattr(error, name, None) for name in EXTRAS}
    return {**named, "ballot": repr(named["ballot"])}


def test_extras_are_keywords_only() -> None:
    """The message is the one positional argument."""
    stale: Any = StaleFence
    with pytest.raises(TypeError):
        stale("Late.", 7)


def test_error_rebuilds_from_its_args(error: RedlockError) -> None:
    """Other libraries copy an exception by `type(e)(*e.args)`."""
    again = type(error)(*error.args)

    assert again.args == error.args
    assert error.args[0] == MESSAGE
    assert str(again) == str(error)


def pickled(error: RedlockError, protocol: int) -> Any:
    """Return an error that was pickled and restored."""
    return pickle.loads(pickle.dumps(error, protocol))  # noqa: S301  (made here)


COPIES: dict[str, Callable[[RedlockError], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle-{protocol}": functools.partial(pickled, protocol=protocol)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("way", COPIES)
def test_copy_keeps_the_extras(error: RedlockError, way: str) -> None:
    """The children of a worker pickle an error for their parent."""
    again = COPIES[way](error)

    assert type(again) is type(error)
    assert again.args == error.args
    assert extras_of(again) == extras_of(error)


def test_error_survives_a_json_result_backend(error: RedlockError) -> None:
    """A caller that reads the result gets the same type and the same message."""
    backend = Backend(Celery(set_as_current=False), serializer="json")

    stored = backend.encode(backend.prepare_exception(error))
    again = backend.exception_to_python(backend.decode(stored))

    assert type(again) is type(error)
    assert again.args == error.args
    if not isinstance(error, DuplicateTask):
        assert set(extras_of(again).values()) <= {None, "None"}


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_stored_duplicate_names_the_call_that_runs(serializer: str) -> None:
    """A caller that has only its result finds the result of the other call."""
    holder = Holder.here(task="tasks.job", task_id="other-id", started=7.5)
    error = DuplicateTask(MESSAGE, key="k", held_key="k", retry_after=2, holder=holder)
    app = Celery(set_as_current=False)
    backend = Backend(app, serializer=serializer, accept=[serializer])

    stored = backend.encode(backend.prepare_exception(error))
    again = backend.exception_to_python(backend.decode(stored))

    assert type(again) is DuplicateTask
    assert (str(again), repr(again)) == (MESSAGE, f"DuplicateTask({MESSAGE!r})")
    assert (again.key, again.held_key, again.retry_after) == ("k", "k", 2)
    named = [(one.task, one.task_id, one.host) for one in (again.holder, holder)]
    assert named[0] == named[1]
    assert (again.holder.started, again.holder.pid) == (7.5, holder.pid)
    assert str(again.holder) == str(holder)


@pytest.mark.parametrize(
    "facts", [7, [], {"key": 7, "retry_after": "soon"}, {"holder": {"task_id": []}}]
)
def test_stored_facts_of_another_type_are_left_out(facts: object) -> None:
    """A result backend may be written to by others."""
    error = DuplicateTask(MESSAGE, facts)

    assert (error.key, error.retry_after, str(error)) == (None, None, MESSAGE)
    assert not getattr(error.holder, "task_id", "")
