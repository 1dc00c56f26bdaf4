"""A project whose base classes choose ids, set headers, add keywords, publish later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.policies import Conflict
from tests.projects.conftest import Project


@pytest.fixture
def project(start: Callable[..., Project]) -> Project:
    """Give the project, with a worker."""
    return start("base_classes")


def test_claims_are_of_the_messages_that_are_sent(project: Project) -> None:
    """Each call is unique while it waits, runs, and leaves no claim behind."""
    for name in ("named", "traced", "carrying"):
        task: Any = getattr(project, name)
        waiting = task.apply_async((name,), queue="later")
        second = task.delay(name)

        assert isinstance(second.conflict, Conflict), name
        assert second.id == waiting.id, name
    project.consume("later")
    for name in ("named", "traced", "carrying"):
        project.until_noted(name)
        project.until_unclaimed(name)
        assert getattr(project, name).delay(name).conflict is None
        project.until_noted(name, 2)


def test_call_that_is_published_on_commit_runs_then(project: Project) -> None:
    """``delay`` returns what the base class returns; nothing is claimed before."""
    assert project.committed.delay("later") is None
    assert project.nodes.claimant("later") is None

    project.later.pop()()

    project.until_noted("later")
    project.until_unclaimed("later")


@pytest.mark.long
def test_locks_of_killed_children_are_released_where_their_keys_are_not_known(
    project: Project,
) -> None:
    """The second run has the lock because the first lost it, and not after its ttl."""
    names = ["unpacked", "extended", "regional"]
    results = [getattr(project, name).delay(1) for name in names]

    for name, result in zip(names, results, strict=True):
        result.get(timeout=20)
        assert len(project.until_noted(name)) == 2
    assert project.logs().count("Released the lock") == len(names)
