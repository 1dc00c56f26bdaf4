"""An operator releases the lock of a task that runs, and leaves a trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from celery import states
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_redlock import LockLost
from celery_redlock.cli import redlock
from tests.harness.processes import is_alive
from tests.harness.waiting import until
from tests.worker.support import redelivery
from tests.worker.test_seen_and_heard import Monitor, here, monitor

if TYPE_CHECKING:
    from click.testing import Result

    from tests.harness.deployment import Deploy, Deployment

__all__ = ["here", "monitor"]  # pytest finds them here


def command(here: Deployment, *words: str) -> Result:
    """Run ``celery redlock ...`` as an operator."""
    context = CLIContext(app=here.app, no_color=True, workdir=None)
    return CliRunner().invoke(redlock, words, obj=context, catch_exceptions=False)


def released(here: Deployment, key: str) -> list[dict[str, Any]]:
    """Return the releases of the key that ``show`` lists."""
    document = json.loads(command(here, "show", key, "--json").stdout)
    found: list[dict[str, Any]] = document["released"]
    return found


def test_holder_whose_lock_was_released_stops_and_says_by_whom(
    here: Deployment, monitor: Monitor, key: str
) -> None:
    """Log, signal, event and result name the operator and the reason."""
    first = here.begin("short", key)
    here.nodes.until_held(key)

    done = command(here, "release", key, "--yes", "--reason", "stuck since noon")

    assert done.exit_code == 0
    with pytest.raises(LockLost):
        first.get(timeout=60)
    assert first.state == states.FAILURE
    event = monitor.until(first.id, "task-lock-lost")["task-lock-lost"]
    (signal,) = until(lambda: here.stage.notes(key, "signal-force-released"))
    for said in (event["released_by"], signal["released_by"]):
        assert said.startswith("an operator, ")
        assert "with celery redlock release" in said
        assert said.endswith(": stuck since noon")
    assert (event["key"], event["decision"]) == (key, "abort")
    assert here.stage.notes(key, "signal-lost")
    line = f"The lock {key!r} was released by an operator, "
    until(lambda: line in here.logs(), what="the log line")
    assert "stuck since noon" in here.logs()
    here.nodes.until_free(key)


def test_kill_ends_the_holder_before_the_release(deploy: Deploy, key: str) -> None:
    """The process is gone, so no two run; the job is not delivered again."""
    here = deploy(concurrency=2)
    first = here.begin("job", key)
    here.nodes.until_held(key)
    (run,) = here.stage.running(key)

    done = command(here, "release", key, "--yes", "--kill", "--reason", "leaks")

    assert done.exit_code == 0, done.output
    assert "was killed with SIGTERM by worker " in done.stdout
    until(lambda: not is_alive(run.pid))
    here.nodes.until_free(key)
    until(lambda: first.state == states.REVOKED)
    (found,) = released(here, key)
    assert (found["killed"], found["reason"]) == (True, "leaks")
    second = here.send("quick", key)
    assert second.get(timeout=60)


@pytest.mark.long
def test_holder_whose_job_came_again_is_named_and_not_killed(
    deploy: Deploy, key: str
) -> None:
    """Celery knows the later copy only, and would kill that while the holder lives."""
    here = deploy(concurrency=2, settings=redelivery())
    first = here.begin("job", key)
    (run,) = here.stage.running(key)
    here.until_received(first.id, times=2)

    done = command(here, "release", key, "--yes", "--kill")

    assert done.exit_code == 1
    assert "has got a copy of its job since, and cannot kill this run" in done.stderr
    assert f"End process {run.pid} on " in done.stderr
    assert "Nothing was released." in done.stderr
    assert is_alive(run.pid)
    assert here.nodes.holders(key)
    here.finish(key, first)


@pytest.mark.long
def test_thread_cannot_be_killed(deploy: Deploy, key: str) -> None:
    """Nothing is released, and the message says what a release without it does."""
    here = deploy(pool="threads", concurrency=2)
    first = here.begin("job", key)
    here.nodes.until_held(key)

    done = command(here, "release", key, "--yes", "--kill")

    assert done.exit_code == 1
    assert "has the pool threads, and only the processes of a prefork" in done.stderr
    assert "interrupts the task at its next renewal" in done.stderr
    assert "Nothing was released." in done.stderr
    assert here.nodes.holders(key)
    here.finish(key, first)


def test_holder_that_no_worker_knows_is_not_killed(
    prefork: Deployment, key: str
) -> None:
    """It may live where no worker answers, so its lock is not released."""
    first = prefork.begin("job", key)
    prefork.nodes.rename_holder(key, "no-such-task")

    done = command(prefork, "release", key, "--yes", "--kill")

    assert done.exit_code == 1
    assert "no worker says that it runs this task in this process (1 " in done.stderr
    assert "Nothing was released." in done.stderr
    assert prefork.nodes.holders(key)
    prefork.finish(key, first)
