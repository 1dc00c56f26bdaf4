"""Kills of a holder where the broker or a worker fails; more is in `tests/worker`."""

from __future__ import annotations

import socket
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

    def __init__(self, last: str = "", replies: dict[str, Any] | None = None) -> None:
        self._last = last
        self._replies = {**REPLIES, **(replies or {})}

    def inspect(self, *_: object, **__: object) -> Control:
        """Return what has an inquiry for each name."""
        return self

    def __getattr__(self, name: str) -> Any:
        def reply(*_: object, **__: object) -> Any:
            if name == self._last:
                raise OperationalError("the broker is down")
            answer = self._replies[name]
            return answer.pop(0) if isinstance(answer, list) else answer

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


FAILED = {"w@worker-1": {"error": "RuntimeError('Set changed size during iteration')"}}


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("active", r"no worker says .* \(0 workers answered\)"),
        ("query_task", "worker w@worker-1 did not answer"),
        ("stats", "worker w@worker-1 did not answer"),
    ],
)
def test_holder_is_not_killed_if_a_worker_replies_with_an_error(
    what: str, reason: str
) -> None:
    """Celery sends the error of an inquiry as its reply."""
    app = Celery(broker="memory://", set_as_current=False)
    app.control = Control(replies={what: FAILED})

    with pytest.raises(HolderLives, match=f"was not killed: .*{reason}"):
        kill_holder(app, HOLDER)


def test_error_of_a_worker_is_no_end_of_the_holder() -> None:
    """Only a worker that lists its tasks, without this one, says that it has ended."""
    app = Celery(broker="memory://", set_as_current=False)
    ended: dict[str, Any] = {"w@worker-1": []}
    replies = [REPLIES["active"], FAILED, REPLIES["active"], ended]
    app.control = Control(replies={"active": replies})

    said = kill_holder(app, HOLDER)

    assert "was killed with SIGTERM" in said
    assert not replies


def test_holder_is_not_killed_if_the_broker_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Redis that is frozen takes the connection, and replies never."""
    monkeypatch.setattr("celery_redlock.operations.kill_holder._BROKER_WITHIN", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        app = Celery(broker=url, set_as_current=False)

        with pytest.raises(HolderLives, match=r"was not killed: .*no answer within"):
            kill_holder(app, HOLDER)
