"""A task is locked however it is defined, and equal calls are seen as equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from tests.harness.waiting import until
from tests.worker.support import assert_refused

if TYPE_CHECKING:
    from tests.harness.deployment import Deployment


@pytest.mark.parametrize(
    ("name", "again"),
    [
        *((name, name) for name in ("bound", "class-based", "of-the-house", "by-base")),
        *(("job", other) for other in ("job", "quick", "by-app")),
    ],
)
def test_kind_runs_once_at_a_time(
    prefork: Deployment, key: str, name: str, again: str
) -> None:
    """Bound, class-based, on a user's base, by ``base=``, shared: all are locked.

    Two tasks whose keys have the same text share the lock.
    """
    first = prefork.begin(name, key)

    assert_refused(prefork.send(again, key), first)

    prefork.finish(key, first)
    assert len(prefork.stage.runs(key)) == 1
    prefork.finish(key, prefork.send(again, key))


def test_user_base_keeps_hooks_and_request(prefork: Deployment, key: str) -> None:
    """A user's base is composed with ours: its call, hooks and request still run."""
    prefork.finish(key, prefork.send("of-the-house", key))

    until(lambda: prefork.stage.notes(key, "house-success"))
    assert len(prefork.stage.notes(key, "house-called")) == 1
    until(lambda: len(prefork.stage.notes(key, "house-accepted")) == 1)


def test_pydantic_arguments_are_part_of_the_call(prefork: Deployment, key: str) -> None:
    """Models arrive as models, and equal ones make equal calls."""
    first = prefork.send("typed", {"key": key, "amount": 1})
    prefork.until_running(key, first.id)

    assert_refused(prefork.send("typed", {"amount": 1, "key": key}), first)
    other = prefork.send("typed", {"key": key, "amount": 2})

    prefork.until_running(key, first.id, other.id)
    prefork.finish(key, first, other)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"value": 1}), ((1,), {}), ((), {})],
    ids=["keyword", "positional", "default"],
)
def test_equal_calls_are_equal_however_they_are_written(
    prefork: Deployment, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Positional, by keyword or by default: the same values are the same call."""
    first = prefork.begin("canonical", key, 1)
    publish = prefork.task("canonical").apply_async

    assert_refused(publish((key, *args), kwargs), first)
    assert_refused(publish((), {"key": key}), first)


@pytest.mark.parametrize("value", ["1", 2, [1], {"value": 1}, None])
def test_different_calls_are_different(
    prefork: Deployment, key: str, value: object
) -> None:
    """Another value, or the same value with another type, makes another call."""
    first = prefork.begin("canonical", key, 1)

    other = prefork.send("canonical", key, value)

    prefork.until_running(key, first.id, other.id)


def test_unique_on_names_what_counts(prefork: Deployment, key: str) -> None:
    """With ``unique_on`` calls are equal when those arguments are."""
    first = prefork.begin("chosen", key, 1)

    assert_refused(prefork.send("chosen", key, 2), first)


def test_body_may_mutate_its_arguments(prefork: Deployment, key: str) -> None:
    """The key is computed once: changed arguments change neither lock nor release."""
    call = ("mutating", key, [1, 2, 3], {"one": 1})
    first = prefork.begin(*call)
    assert prefork.nodes.locks("mutating")

    assert_refused(prefork.send(*call), first)

    prefork.finish(key, first)
    prefork.nodes.until_free("mutating")
    assert prefork.send(*call).get(timeout=60)


def test_call_by_name_is_deduplicated(prefork: Deployment, key: str) -> None:
    """A publisher without the task's code uses ``send_task``; the worker decides."""
    with Celery(
        broker=prefork.app.conf.broker_url,
        backend=prefork.app.conf.result_backend,
        set_as_current=False,
    ) as stranger:
        first = stranger.send_task("job", (key,))
        prefork.until_running(key, first.id)

        second = stranger.send_task("job", kwargs={"key": key})

        assert_refused(second, first)
        prefork.finish(key, first)
        stranger.backend.client.close()
    assert len(prefork.stage.runs(key)) == 1
