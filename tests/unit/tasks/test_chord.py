"""A redelivered copy of a finished chord member makes the chord count it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery, states

from celery_redlock import singleton_task
from celery_redlock.app.runtime import runtime_of
from tests.unit.tasks.support import Worker

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from celery_redlock.testing import FakeNodes


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's backend
def test_finished_member_that_was_not_counted_is_counted_by_its_copy(
    nodes: FakeNodes, three_nodes: DevNodes
) -> None:
    """A member that is killed before it is counted does not hang its chord."""
    app = Celery("chord", set_as_current=False)
    app.conf.update(
        broker_url="memory://",
        result_backend=three_nodes.urls[0],
        redlock_nodes=nodes.urls,
    )
    runtime_of(app).use(nodes.redlock())

    @singleton_task(app=app, name="member")
    def member() -> int:
        return 1

    backend = app.backend
    backend.store_result("the-id", 1, states.SUCCESS)
    counted = backend.get_key_for_group("the-group", ".j")
    body = app.signature("tail").set(task_id="the-tail", chord_size=2)

    run = Worker(app).redeliver(
        member, id="the-id", group="the-group", group_index=0, chord=body
    )

    assert run.state == "IGNORED"
    assert backend.client.zcard(counted) == 1
    runtime_of(app).stop()
    app.close()
