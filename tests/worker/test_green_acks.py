"""Calls of greenlets whose worker had to connect to its broker again."""

from __future__ import annotations

import pytest

from tests.harness.deployment import Deploy
from tests.harness.servers import RabbitMQ

pytestmark = pytest.mark.long  # a worker of its own


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_call_that_is_acknowledged_after_a_loss_of_the_connection_runs(
    deploy: Deploy, rabbitmq: RabbitMQ, key: str, pool: str
) -> None:
    """Celery raises its prefetch count with the acknowledgement, and fails in that.

    The greenlet that acknowledges reads from a socket from which another one reads.
    """
    pytest.importorskip(pool)
    # Other workers of this session take calls from the default queue of this broker.
    settings = {"broker_url": rabbitmq.url, "task_default_queue": f"green-{key}"}
    here = deploy(pool=pool, settings=settings)
    holder = here.begin("job", key)
    call = here.send("waiting-early", key, 0.0)
    here.until_received(call.id, 2)
    rabbitmq.drop_connections()
    here.until_received(call.id, 3)
    # The pool of this process has lost its connections, too.
    with here.app.connection_for_write() as connection:
        here.app.control.ping(connection=connection)  # by now the worker waits for more

    here.finish(key, holder, call)
