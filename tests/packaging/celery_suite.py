"""A pytest plugin: Celery's own tests, with every task a singleton task.

``nox -s celery`` runs Celery's integration tests with it. Each call gets a key of its
own, so no lock ever refuses one, and each test must pass as it does with plain tasks.
The plugin starts the servers: one for messages and results, and three lock nodes.
``--plain-tasks`` leaves Celery's tasks as they are, to compare.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import uuid
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import celery
import pytest

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.devnodes import DevNodes

CONFIG = "integration-tests-config.json"  # Celery's tests add it to their settings


def own_key() -> str:
    """Return a key that no other call has."""
    return uuid.uuid4().hex


class OwnKey(SingletonTask):
    """The base class of all tasks."""

    abstract = True
    redlock: ClassVar[dict[str, object]] = {"key": own_key}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--plain-tasks", action="store_true", help="leave Celery's tasks as they are"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the servers, and replace the task classes before Celery's tests use them.

    Celery's ``conftest.py`` reads these variables when it is imported.
    """
    messages = DevNodes(1, initialize=False)
    messages.start()
    early_config.add_cleanup(messages.stop)
    (url,) = messages.urls
    at = urlsplit(url)
    redis = {"REDIS_HOST": str(at.hostname), "REDIS_PORT": str(at.port)}
    os.environ |= {"TEST_BROKER": url, "TEST_BACKEND": url, **redis}
    if early_config.known_args_namespace.plain_tasks:
        Path(CONFIG).unlink(missing_ok=True)
        return
    nodes = DevNodes(3)
    nodes.start()
    early_config.add_cleanup(nodes.stop)
    settings = {"redlock_nodes": list(nodes.urls)}
    Path(CONFIG).write_text(json.dumps(settings), encoding="utf-8")
    # The module is lazy: an attribute that was not read yet would be set again.
    assert celery.shared_task
    assert celery.Task
    celery.shared_task = functools.partial(singleton_task, key=own_key)
    celery.Task = OwnKey


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that Celery's tests call the tasks that they are meant to call."""
    task = sys.modules["t.integration.tasks"].add
    assert isinstance(task, SingletonTask) != session.config.option.plain_tasks
