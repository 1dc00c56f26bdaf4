"""The errors: one tree, drawn where one reads it, each caught by its remedy."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from celery_redlock import errors
from celery_redlock.core.lease import Holder
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

TRY_LATER = (LockHeld, DuplicateTask, LockContended, QuorumUnreachable)
STOP_WRITING = (LockLost, LockCancelled, NotHolder)
OTHERS = (ConfigurationError, FingerprintError, StaleFence)


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


@pytest.mark.parametrize("kind", TRY_LATER)
def test_nothing_is_held_is_one_family(kind: type[LockUnavailable]) -> None:
    """Whoever wants to try later catches LockUnavailable, and nothing else."""
    assert issubclass(kind, LockUnavailable)
    assert not issubclass(kind, LeaseError)


@pytest.mark.parametrize("kind", STOP_WRITING)
def test_lost_lease_is_one_family(kind: type[LeaseError]) -> None:
    """Whoever must stop writing catches LeaseError, and nothing else."""
    assert issubclass(kind, LeaseError)
    assert not issubclass(kind, LockUnavailable)


@pytest.mark.parametrize("kind", OTHERS)
def test_mistake_is_no_refusal(kind: type[RedlockError]) -> None:
    """A mistake of the programmer is not caught by whoever handles a busy lock."""
    assert issubclass(kind, RedlockError)
    assert not issubclass(kind, (LockUnavailable, LeaseError))


@pytest.mark.parametrize("name", errors.__all__)
def test_extras_are_optional(name: str) -> None:
    """An error can be made of a message alone, or of nothing; extras are None."""
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


def test_extras_are_keywords_and_attributes() -> None:
    """What an error knows beside its message is an attribute of that name."""
    holder = Holder("base.attempt", task_id="id")
    error = DuplicateTask("Taken.", key="k", holder=holder, retry_after=1.5)

    assert (error.key, error.holder, error.retry_after) == ("k", holder, 1.5)
    assert error.args == ("Taken.",)
    stale: Any = StaleFence
    with pytest.raises(TypeError):
        stale("Late.", 7)


def test_copy_keeps_the_extras() -> None:
    """Whatever copies an exception gets all of it."""
    error = LockLost("Gone.", key="k", fence=7)

    for again in (copy.copy(error), copy.deepcopy(error)):
        assert type(again) is LockLost
        assert (str(again), again.key, again.fence) == ("Gone.", "k", 7)
