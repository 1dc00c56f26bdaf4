"""A site with an admin, its nodes, and a user."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from celery import Celery
from django.core.management import call_command

from celery_redlock.app.runtime import runtime_of
from tests.contrib.storages import default_database, make_tables, use_django
from tests.nodes.support import PATIENT, client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes


@pytest.fixture(scope="module")
def office(sqlite: str) -> Iterator[None]:
    """Give a Django site with an admin and a database."""
    alias = use_django(sqlite)
    make_tables(alias)
    with default_database(alias):
        call_command("migrate", verbosity=0, run_syncdb=True)
        yield


@pytest.fixture
def name() -> str:
    """Give a new user name."""
    return f"user-{secrets.token_hex(4)}"


@pytest.fixture
def nodes(office: None, three_nodes: DevNodes) -> Iterator[DevNodes]:
    """Give three nodes that the site's Celery app uses."""
    from django.test import override_settings  # noqa: PLC0415  (Django is set up now)

    app = Celery("office", set_as_current=False)
    app.conf.redlock_nodes = three_nodes.urls
    app.conf.redlock_node_timeout = PATIENT
    with override_settings(REDLOCK_CELERY_APP=app):
        yield three_nodes
        runtime_of(app).redlock.close()
    app.close()


@pytest.fixture
def service(nodes: DevNodes) -> Iterator[Redlock]:
    """Give the lock service of a worker elsewhere."""
    with client(nodes) as redlock:
        redlock.check()  # connects to all nodes
        yield redlock
