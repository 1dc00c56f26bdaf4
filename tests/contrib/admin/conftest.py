"""A site with an admin, nodes that it looks at, and a user who looks."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from celery_redlock.runtime import runtime_of
from tests.contrib.office import open_office
from tests.contrib.storages import make_tables, use_django
from tests.nodes.support import PATIENT, client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes


@pytest.fixture(scope="module")
def office(sqlite: str) -> None:
    """Give a Django site with an admin and a database."""
    alias = use_django(sqlite)
    make_tables(alias)
    open_office(alias)


@pytest.fixture
def name() -> str:
    """Give a user name that nobody has."""
    return f"user-{secrets.token_hex(4)}"


@pytest.fixture
def nodes(office: None, three_nodes: DevNodes) -> Iterator[DevNodes]:
    """Give three nodes that the site's Celery app locks on."""
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
    """Give a lock service for a worker that is somewhere else."""
    with client(nodes) as redlock:
        redlock.check()  # connects to all nodes
        yield redlock
