"""Tasks with effects in a database: exactly once, and as often as they run.

Only workers whose settings name a database have them, so that no other worker has to
import SQLAlchemy.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from celery import Celery, current_task
from celery.backends.redis import RedisBackend

from celery_redlock import Outbox, singleton_task
from tests.worker.project.body import hold, recorded, stage
from tests.worker.project.jobs import LATE

DATABASE = "once_database"
outboxes: list[Outbox] = []  # an app knows them for as long as they live
TTL = 2  # seconds, where a test waits until the lock of a dead process has ended


class Down(Exception):  # noqa: N818  (what a driver may call it)
    """An error of a result backend."""


class DownOnce(RedisBackend):
    """Cannot be reached for the first result, and then stores the error about that."""

    fails = 1

    def _set_with_state(self, key: bytes, value: str, state: str) -> Any:
        call = str(current_task.request.id)
        stage().note(call, "store", state=state)
        if len(stage().notes(call, "store")) <= self.fails:
            raise Down(call)
        return super()._set_with_state(key, value, state)


class DownTwice(DownOnce):
    """Cannot be reached for the first result, and not for the error about that."""

    fails = 2


def register(app: Celery) -> None:  # noqa: C901  (one task after the other)
    """Add the tasks to an app whose settings name a database."""
    url = app.conf.get(DATABASE)
    if not url:
        return
    from sqlalchemy import NullPool, create_engine, event, text  # noqa: PLC0415
    from sqlalchemy.orm import Session  # noqa: PLC0415

    from celery_redlock.contrib.sqlalchemy import current_session  # noqa: PLC0415

    engine = create_engine(url, poolclass=NullPool)
    add_one = text("UPDATE counter SET value = value + 1 WHERE name = :name")

    def effect(session: Session, key: str, name: str, ends: str) -> None:
        """Add one to a row. The first time, be killed, or wait, after the commit."""

        def committed(_: Any) -> None:
            first = not stage().notes(f"{key}-{name}", "committed")
            stage().note(f"{key}-{name}", "committed")
            if first and ends == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if first and ends == "waits":
                stage().wait(key)

        event.listen(session, "after_commit", committed)
        session.execute(add_one, {"name": name})

    @singleton_task(
        app=app,
        shared=False,
        name="once",
        key="{key}-{name}",
        ttl=TTL,
        exactly_once_in=lambda: Session(engine),
        **LATE,
    )
    def once(key: str, name: str, ends: str) -> str:
        with recorded(key):
            effect(current_session(), key, name, ends)
        return name

    class DyingOutbox(Outbox):
        """Kills its process instead of publishing, once for each row."""

        def _publish_committed(self, ids: list[str]) -> None:
            row = str(current_task.request.args[1])
            if not stage().notes(row, "killed"):
                stage().note(row, "killed")
                os.kill(os.getpid(), signal.SIGKILL)
            super()._publish_committed(ids)

    outbox = DyingOutbox(lambda: Session(engine), app=app)
    outboxes.append(outbox)

    @singleton_task(
        app=app,
        shared=False,
        name="sending",
        key="{key}-{name}",
        ttl=TTL,
        exactly_once_in=lambda: Session(engine),
        **LATE,
    )
    def sending(key: str, name: str) -> str:
        current_session().execute(add_one, {"name": name})
        return str(outbox.send(once, (key, f"{name}-next", "")).id)

    @singleton_task(
        app=app, shared=False, name="often", key="{key}-{name}", ttl=TTL, **LATE
    )
    def often(key: str, name: str, ends: str) -> str:
        with recorded(key), Session(engine) as session, session.begin():
            effect(session, key, name, ends)
        return name

    @singleton_task(
        app=app,
        shared=False,
        name="once-frozen",
        key="{key}",
        ttl=TTL,
        exactly_once_in=lambda: Session(engine),
        **LATE,
    )
    def once_frozen(key: str) -> str:
        session = current_session()
        if stage().notes(key, "frozen"):
            session.execute(add_one, {"name": key})
            return key
        stage().note(key, "frozen")
        with contextlib.suppress(Exception):  # a body that ignores its interrupts
            hold(key)
        session.execute(add_one, {"name": key})
        return key
