"""Kills of a holder whose broker goes away meanwhile; workers are in `tests/worker`."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_redlock.locks.lease import Holder
from celery_redlock.operations.kill_holder import HolderLives, kill_holder

HOLDER = Holder("", task="proj.task", task_id="an-id", host="worker-1", pid=4711)
RUNS = {"id": "an-id", "worker_pid": 4711}
REPLIES = {
    "active": {"w@worker-1": [RUNS]},
    "query_task": {"w@worker-1": {"an-id": ["active", RUNS]}},
    "stats": {"w@worker-1": {"pool": {"implementation": "concurrency.prefork:Pool"}}},
    "revoke": None,
}


class Control:
    """Celery's ``app.control``, until the broker goes away at one of its inquiries."""

    def __init__(self, last: str) -> None:
        self._last = last

    def inspect(self, *_: object, **__: object) -> Control:
        """Return what has an inquiry for each name."""
        return self

    def __getattr__(self, name: str) -> Any:
        def reply(*_: object, **__: object) -> Any:
            if name == self._last:
                raise OperationalError("the broker is down")
            return REPLIES[name]

        return reply


@pytest.mark.parametrize("last", ["active", "query_task", "stats"])
def test_holder_is_not_killed_if_the_broker_goes_away(last: str) -> None:
    """The workers could not be asked, whichever inquiry it was."""
    app = Celery(broker="memory://", set_as_current=False)
    app.control = Control(last)

    with pytest.raises(HolderLives, match=r"was not killed: .*\(the broker is down"):
        kill_holder(app, HOLDER)


def test_holder_may_be_killed_if_the_broker_goes_away_with_the_signal() -> None:
    """It is not known whether a worker got the signal: the holder may still run."""
    app = Celery(broker="memory://", set_as_current=False)
    app.control = Control("revoke")

    with pytest.raises(HolderLives, match=r"may still run: .*\(the broker is down"):
        kill_holder(app, HOLDER)
