"""A Django project whose locks are in its own database."""

from __future__ import annotations

import pytest

from tests.nodes.support import run_python
from tests.stores.commands import IN_DJANGO

PROJECT = """
from django.core.management import call_command

settings.configure(
    DATABASES={"default": database()},
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "celery_redlock.contrib.django",
    ],
)
django.setup()

from django.db import connection, transaction

from celery_redlock.locks.redlock import Redlock
from celery_redlock.errors import LockLost, RedlockError


def tables():
    return [name for name in connection.introspection.table_names() if "keys" in name]


call_command("migrate", "celery_redlock", verbosity=0)
print("migrated:", tables())
redlock = Redlock(["django://default"], node_timeout=5.0)
redlock.initialize()
lease = redlock.acquire("mine")
with transaction.atomic():
    redlock.confirm(lease, connection)
    print("held")
redlock.release(lease)
try:
    with transaction.atomic():
        redlock.confirm(lease, connection)
except LockLost:
    print("lost")
call_command("migrate", "celery_redlock", "zero", verbosity=0)
print("migrated back:", tables())
redlock.close()
try:
    redlock.acquire("mine")
except RedlockError as error:
    print("without its table:", error)
"""


TENANTS = """
from importlib import import_module

path = {"options": "-c search_path=acme,public"}
settings.configure(
    DATABASES={"default": database(), "acme": database(OPTIONS=path)},
    INSTALLED_APPS=["celery_redlock.contrib.django"],
)
django.setup()

from django.db import connection, connections

from celery_redlock.locks.redlock import Redlock

tables = import_module("celery_redlock.contrib.django.migrations.0001_initial")


def run(step, alias):
    with connections[alias].schema_editor() as editor:
        step(None, editor)


with connection.cursor() as cursor:
    cursor.execute("CREATE SCHEMA acme")
run(tables.make, "default")
redlock = Redlock(["django://default"], node_timeout=5.0)
redlock.initialize()
lease = redlock.acquire("mine")
redlock.close()
run(tables.make, "acme")
print("renewed after the tenant came:", redlock.extend(lease))
redlock.close()
run(tables.drop, "acme")
print("renewed after the tenant went:", redlock.extend(lease))
redlock.release(lease)
redlock.close()
run(tables.drop, "default")
"""


@pytest.mark.long
def test_schema_of_a_tenant_gets_no_table_of_its_own(own_postgresql: int) -> None:
    """A second table would end all locks: clients could use either of the two."""
    assert run_python(IN_DJANGO + TENANTS, str(own_postgresql)) == [
        "renewed after the tenant came: True",
        "renewed after the tenant went: True",
    ]


def test_project_locks_in_its_own_database(own_postgresql: int) -> None:
    """``migrate`` makes the table, and ``django://default`` leads to it."""
    *said, last = run_python(IN_DJANGO + PROJECT, str(own_postgresql))
    assert said == [
        "migrated: ['redlock_keys']",
        "held",
        "lost",
        "migrated back: []",
    ]
    assert "has no table redlock_keys; run `celery -A proj redlock init`" in last
