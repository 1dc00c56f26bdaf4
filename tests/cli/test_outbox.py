"""``redlock outbox``: what waits in outboxes, and publishing it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from sqlalchemy import MetaData, NullPool, create_engine
from sqlalchemy.orm import Session

from celery_redlock import Outbox
from celery_redlock.contrib.sqlalchemy import outbox_table
from tests.cli.project import Project


@pytest.fixture
def sessions(tmp_path: Path) -> Callable[[], Session]:
    """Give what makes sessions of a database with the table of the outbox."""
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", poolclass=NullPool)
    metadata = MetaData()
    outbox_table(metadata)
    metadata.create_all(engine)

    def orders() -> Session:
        return Session(engine)

    orders.__qualname__ = "orders"
    return orders


def test_app_without_an_outbox(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing that waits."""
    # Those of earlier tests live until Python collects them, and name no app.
    monkeypatch.setattr("celery_redlock.effects.outbox._known", WeakSet())

    run = project.redlock("outbox")

    assert (run.code, run.out) == (0, "The app has no outbox.\n")
    assert project.redlock("outbox", "--json").out == '{"outboxes": []}\n'


def test_messages_are_shown_and_published(
    project: Project, sessions: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes were killed between commit and publication."""
    outbox = Outbox(sessions)
    with monkeypatch.context() as dying:
        dying.setattr(Outbox, "_publish_committed", lambda *_: None)
        with sessions() as session, session.begin():
            for each in "ab":
                outbox.send("ship", (each,), session=session)

    seen = project.redlock("outbox")
    document = json.loads(project.redlock("outbox", "--json").out)
    done = project.redlock("outbox", "--publish")

    assert seen.code == 1
    assert "The outbox of 'orders': 2 messages waiting, the oldest for " in seen.out
    (fact,) = document["outboxes"]
    assert fact.pop("oldest") >= 0
    assert fact == {"outbox": "orders", "published": 0, "waiting": 2, "kept": []}
    expected = "The outbox of 'orders': 2 messages published, 0 messages waiting.\n"
    assert (done.code, done.out) == (0, expected)


def test_message_that_cannot_be_published_is_shown_with_the_reason(
    project: Project, sessions: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No log line says it: the command shows no log."""
    monkeypatch.setattr("celery_redlock.effects.outbox._known", WeakSet())
    outbox = Outbox(sessions)
    with monkeypatch.context() as dying:
        dying.setattr(Outbox, "_publish_committed", lambda *_: None)
        with sessions() as session, session.begin():
            outbox.send("ship", session=session, task_id="the-id")
    at_once = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    away: dict[str, Any] = {
        "broker_url": "redis://127.0.0.1:1/0",
        "broker_transport_options": at_once,
        "task_publish_retry": False,
    }

    tried = project.redlock("outbox", "--publish", **away)
    document = project.redlock("outbox", "--publish", "--json", **away).document

    assert tried.code == 1
    first, second = tried.out.splitlines()
    assert "0 messages published, 1 message waiting" in first
    assert second.startswith("ship[the-id] stays in the outbox of 'orders', since")
    assert "refused" in second
    assert document["outboxes"][0]["kept"][0].startswith("ship[the-id] stays")


def test_database_that_is_away_is_told_beside_the_other_outboxes(
    project: Project,
    sessions: Callable[[], Session],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator gets no traceback, and sees what waits elsewhere."""
    monkeypatch.setattr("celery_redlock.effects.outbox._known", WeakSet())
    engine = create_engine(f"sqlite:///{tmp_path / 'away' / 'db'}")

    def invoices() -> Session:
        return Session(engine)

    invoices.__qualname__ = "invoices"
    outboxes = [Outbox(invoices), Outbox(sessions)]

    for words in (("outbox",), ("outbox", "--publish")):
        run = project.redlock(*words)
        assert run.code == 3
        assert "The outbox of 'invoices' cannot be used: OperationalError: " in run.out
        assert "unable to open database file." in run.out
        assert "0 messages waiting" in run.out
    failed, other = project.redlock("outbox", "--json").document["outboxes"]
    assert sorted(failed) == ["error", "outbox"]
    assert other["waiting"] == 0
    assert len(outboxes) == 2
