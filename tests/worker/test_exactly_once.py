"""Effects exactly once: workers that are killed between commit and acknowledgement.

The same program with a task that commits by itself doubles what it does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import states, uuid
from sqlalchemy import Engine, NullPool, create_engine, text

from celery_redlock.contrib.sqlalchemy import outbox_table, record_table
from tests.harness.deployment import Deploy, Deployment, Site
from tests.harness.lock_nodes import LockNodes
from tests.harness.servers import PostgreSQL, sqlalchemy_url
from tests.harness.store_nodes import postgresql
from tests.harness.waiting import until
from tests.worker.project.once import DATABASE
from tests.worker.support import redelivery

JOBS, KILLS = 9, 3


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Give a PostgreSQL with the tables; without one, skip here and fail in CI."""
    from sqlalchemy import MetaData  # noqa: PLC0415

    with postgresql(PostgreSQL) as server:
        engine = create_engine(sqlalchemy_url(server), poolclass=NullPool)
        metadata = MetaData()
        outbox_table(metadata)
        record_table(metadata)
        metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE counter (name text, value int)"))
        yield engine


def settings(engine: Engine, **more: Any) -> dict[str, Any]:
    """Return the settings of a worker whose tasks write in this database."""
    return {DATABASE: engine.url.render_as_string(hide_password=False), **more}


@pytest.fixture(scope="module")
def here(engine: Engine, site: Site, nodes: LockNodes) -> Iterator[Deployment]:
    """Give a worker with two processes, whose tasks write in the database."""
    with site.deploy(nodes, concurrency=2, settings=settings(engine)) as deployment:
        yield deployment


def add_rows(engine: Engine, *names: str) -> None:
    """Add a row for each of these names, with the value 0."""
    with engine.begin() as connection:
        for name in names:
            row = {"name": name}
            connection.execute(text("INSERT INTO counter VALUES (:name, 0)"), row)


def values(engine: Engine, *names: str) -> list[int]:
    """Return the values of these rows."""
    with engine.begin() as connection:
        rows = connection.execute(text("SELECT name, value FROM counter")).all()
    found: dict[str, int] = {name: value for name, value in rows}  # noqa: C416
    return [found[name] for name in names]


def old_messages(engine: Engine) -> int:
    """Return how many messages wait that another process than theirs may publish."""
    old = "SELECT count(*) FROM celery_redlock_message WHERE written_at < :before"
    before = datetime.now(timezone.utc) - timedelta(seconds=11)
    with engine.begin() as connection:
        return int(connection.execute(text(old), {"before": before}).scalar_one())


@pytest.mark.parametrize(
    ("task", "doubled"),
    [("once", 0), pytest.param("often", KILLS, marks=pytest.mark.long)],
)
def test_jobs_whose_process_is_killed_after_the_commit(
    here: Deployment, engine: Engine, key: str, task: str, doubled: int
) -> None:
    """With the option each effect is there once, with its result; without it, twice."""
    names = [f"{task}-{key}-{number}" for number in range(JOBS)]
    add_rows(engine, *names)

    results = [
        here.send(task, key, name, "killed" if number < KILLS else "")
        for number, name in enumerate(names)
    ]

    assert [result.get(timeout=60) for result in results] == names
    here.until_settled(*(result.id for result in results))
    assert sorted(values(engine, *names)) == [1] * (JOBS - doubled) + [2] * doubled


@pytest.mark.long
def test_messages_whose_process_is_killed_before_their_publication(
    here: Deployment, engine: Engine, key: str
) -> None:
    """The periodic task publishes each once; the calls that they start have effect."""
    names = [f"sending-{key}-{number}" for number in range(KILLS)]
    nexts = [f"{name}-next" for name in names]
    add_rows(engine, *names, *nexts)

    results = [here.send("sending", key, name) for name in names]
    ids = [result.get(timeout=60) for result in results]
    assert values(engine, *names, *nexts) == [1] * KILLS + [0] * KILLS

    until(lambda: old_messages(engine) == KILLS, 60)
    here.app.send_task("celery_redlock.publish_outbox")
    assert [here.app.AsyncResult(task_id).get(timeout=60) for task_id in ids] == nexts
    here.until_settled(*(result.id for result in results), *ids)
    assert values(engine, *names, *nexts) == [1] * 2 * KILLS


@pytest.mark.long
def test_worker_killed_between_commit_and_acknowledgement(
    deploy: Deploy, engine: Engine, key: str
) -> None:
    """The broker delivers again; the copy stores what is recorded, also in a chain."""
    name = f"worker-{key}"
    add_rows(engine, name)
    late = settings(engine, **redelivery())
    worker = deploy(concurrency=1, settings=late)
    call = worker.task("once").si(key, name, "waits") | worker.task("tail").s(key)
    last = call.apply_async()
    until(lambda: worker.stage.notes(f"{key}-{name}", "committed"), 20)

    worker.worker_cluster[0].container.kill("SIGKILL")
    worker.nodes.until_free(f"{key}-{name}", seconds=60)
    worker.start_worker()

    assert last.get(timeout=60) == name
    assert last.parent.result == name
    assert values(engine, name) == [1]
    assert "Its body does not run." in worker.logs()


def test_process_frozen_before_the_commit_is_rolled_back(
    here: Deployment, engine: Engine, key: str
) -> None:
    """It wakes when another one has done the call: StaleFence, and one effect."""
    add_rows(engine, key)
    task_id = uuid()
    first = here.begin("once-frozen", key, task_id=task_id)
    (run,) = here.stage.running(key)
    os.kill(run.pid, signal.SIGSTOP)

    try:
        here.send("once-frozen", key, task_id=task_id)
        assert first.get(timeout=60) == key
    finally:
        here.stage.open(key)
        os.kill(run.pid, signal.SIGCONT)

    until(lambda: f"{task_id}]: StaleFence: The record of" in here.logs(), 30)
    here.until_settled(task_id)
    assert values(engine, key) == [1]
    assert first.state == states.SUCCESS
    assert first.result == key


def test_hard_limit_ends_a_call_that_stores_no_result(
    here: Deployment, engine: Engine, key: str
) -> None:
    """Its message is acknowledged, as Celery does it; else it would come for ever."""
    later = f"later-{key}"
    add_rows(engine, key, later)
    limit = {"time_limit": 1, "ignore_result": True}
    call = here.send("once-frozen", key, **limit)
    exceeded = f"Hard time limit (1s) exceeded for once-frozen[{call.id}]"
    until(lambda: exceeded in here.logs(), 30)

    # What goes back to the queue comes before it.
    here.send("once", key, later, "").get(timeout=60)

    here.until_settled(call.id)
    assert here.logs().count(f"once-frozen[{call.id}] received") == 1
    assert values(engine, key, later) == [0, 1]


def test_soft_limit_that_is_over_in_the_commit_has_no_effect(
    here: Deployment, engine: Engine, key: str
) -> None:
    """The body has returned in time, so its result stands, as the record says."""
    name = f"soft-{key}"
    add_rows(engine, name)
    result = here.send("once", key, name, "waits")
    until(lambda: here.stage.notes(f"{key}-{name}", "committed"))
    (run,) = here.stage.runs(key)

    os.kill(run.pid, signal.SIGUSR1)  # as billiard does when the limit is over
    here.stage.open(key)

    assert result.get(timeout=60) == name
    assert values(engine, name) == [1]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["DownOnce", "DownTwice"])
def test_result_that_cannot_be_stored_is_stored_by_the_next_copy(
    deploy: Deploy, site: Site, engine: Engine, key: str, kind: str
) -> None:
    """Celery acknowledges such a message; here it goes back to its queue."""
    name = f"backend-{key}"
    add_rows(engine, name)
    url = f"redis://127.0.0.1:{site.backend.port}/0"
    backend = f"tests.worker.project.once.{kind}+{url}"
    worker = deploy(concurrency=1, settings=settings(engine, result_backend=backend))

    result = worker.send("once", key, name, "")

    until(lambda: worker.app.AsyncResult(result.id).result == name, 60)
    worker.until_settled(result.id)
    stored = [note["state"] for note in worker.stage.notes(result.id, "store")]
    assert (len(stored) > 1, stored[-1]) == (True, states.SUCCESS)
    assert values(engine, name) == [1]
