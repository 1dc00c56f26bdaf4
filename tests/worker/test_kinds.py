"""A task is locked however it is defined, and equal calls are seen as equal."""

from __future__ import annotations

import pytest
from celery import Celery

from tests.harness.deployment import Deployment
from tests.harness.waiting import until
from tests.worker.support import assert_refused


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
