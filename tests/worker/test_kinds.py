"""A task is locked however it is defined, and equal calls are seen as equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_redlock import DuplicateTask
from tests.harness.waiting import until

if TYPE_CHECKING:
    from tests.harness.deployment import Deployment


@pytest.mark.parametrize(
    "name", ["bound", "class-based", "of-the-house", "by-base", "job"]
)
def test_kind_runs_once_at_a_time(prefork: Deployment, key: str, name: str) -> None:
    """Bound, class-based, on a user's base, by ``base=``, shared: all are locked."""
    first = prefork.begin(name, key)

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send(name, key).get(timeout=10)

    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert len(prefork.stage.runs(key)) == 1


def test_decorator_with_an_app_makes_a_task_of_that_app(
    prefork: Deployment, key: str
) -> None:
    """``@singleton_task(app=app)`` is locked as well, and shares keys with others."""
    first = prefork.begin("job", key)

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send("by-app", key).get(timeout=10)

    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert prefork.send("by-app", key).get(timeout=10)


def test_user_base_keeps_its_hooks_and_its_request_class(
    prefork: Deployment, key: str
) -> None:
    """A user's base is composed with ours: its call, hooks and request still run."""
    prefork.stage.open(key)

    result = prefork.send("of-the-house", key)

    assert result.get(timeout=10) == result.id
    until(lambda: prefork.stage.notes(key, "house-success"))
    assert len(prefork.stage.notes(key, "house-called")) == 1
    until(lambda: len(prefork.stage.notes(key, "house-accepted")) == 1)


def test_pydantic_arguments_are_part_of_the_call(prefork: Deployment, key: str) -> None:
    """Models arrive as models, and equal ones make equal calls."""
    first = prefork.send("typed", {"key": key, "amount": 1})
    prefork.until_running(key, first.id)

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send("typed", {"amount": 1, "key": key}).get(timeout=10)
    other = prefork.send("typed", {"key": key, "amount": 2})

    prefork.until_running(key, first.id, other.id)
    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    assert other.get(timeout=10) == other.id


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"value": 1}),
        ((1,), {}),
        ((), {}),
    ],
    ids=["keyword", "positional", "default"],
)
def test_equal_calls_are_equal_however_they_are_written(
    prefork: Deployment, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Positional, by keyword or by default: the same values are the same call."""
    first = prefork.begin("canonical", key, 1)

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.task("canonical").apply_async((key, *args), kwargs).get(timeout=10)
    with pytest.raises(DuplicateTask, match=first.id):
        prefork.task("canonical").apply_async(args=(), kwargs={"key": key}).get(
            timeout=10
        )


@pytest.mark.parametrize("value", ["1", 2, [1], {"value": 1}, None])
def test_different_calls_are_different(
    prefork: Deployment, key: str, value: object
) -> None:
    """Another value, or the same value with another type, makes another call."""
    first = prefork.begin("canonical", key, 1)

    other = prefork.send("canonical", key, value)

    prefork.until_running(key, first.id, other.id)


def test_unique_on_names_the_arguments_that_count(
    prefork: Deployment, key: str
) -> None:
    """With ``unique_on`` calls are equal when those arguments are."""
    first = prefork.begin("chosen", key, 1)

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send("chosen", key, 2).get(timeout=10)


def test_body_that_mutates_its_arguments_frees_the_lock_it_took(
    prefork: Deployment, key: str
) -> None:
    """The key is computed once: changed arguments change neither lock nor release."""
    first = prefork.begin("mutating", key, [1, 2, 3], {"one": 1})
    assert prefork.nodes.locks("mutating")

    with pytest.raises(DuplicateTask, match=first.id):
        prefork.send("mutating", key, [1, 2, 3], {"one": 1}).get(timeout=10)

    prefork.stage.open(key)
    assert first.get(timeout=10) == first.id
    prefork.nodes.until_free("mutating")
    assert prefork.send("mutating", key, [1, 2, 3], {"one": 1}).get(timeout=10)


def test_publisher_that_knows_only_the_name_is_deduplicated(
    prefork: Deployment, key: str
) -> None:
    """A publisher without the task's code uses ``send_task``; the worker decides."""
    with Celery(
        broker=prefork.app.conf.broker_url,
        backend=prefork.app.conf.result_backend,
        set_as_current=False,
    ) as stranger:
        first = stranger.send_task("job", (key,))
        prefork.until_running(key, first.id)

        second = stranger.send_task("job", kwargs={"key": key})

        with pytest.raises(DuplicateTask, match=first.id):
            second.get(timeout=10)
        prefork.stage.open(key)
        assert first.get(timeout=10) == first.id
        stranger.backend.client.close()
    assert len(prefork.stage.runs(key)) == 1
