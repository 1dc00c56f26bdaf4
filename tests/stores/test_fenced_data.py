"""Fenced data in the database that also holds the locks."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_redlock.contrib.sqlalchemy import Fenced, fenced
from celery_redlock.errors import LockLost, StaleFence

if TYPE_CHECKING:
    from celery_redlock.locks.redlock import Redlock

DJANGO = """
import sys

import django
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "redlock",
            "HOST": "127.0.0.1",
            "PORT": sys.argv[1],
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.core.management import call_command
from django.db import connection, models, transaction

from celery_redlock.contrib.django import FencedModel
from celery_redlock.locks.lease import new_base
from celery_redlock.locks.redlock import Redlock
from celery_redlock.errors import LockLost, StaleFence


class Account(FencedModel):
    balance = models.IntegerField(default=0)

    class Meta:
        app_label = "bank"


with connection.schema_editor() as editor:
    editor.create_model(Account)
ours, theirs = (Redlock(["django://default"], node_timeout=5.0) for _ in range(2))
ours.prepare()
ours.initialize()
account = Account.objects.create()
base = new_base()
late = ours.acquire("account:1", base=base)
account.balance = 1
account.save(fence=late)
theirs.release_base("account:1", base)  # an operator gives the lock away
lease = theirs.acquire("account:1")
with transaction.atomic():
    theirs.confirm(lease, connection)
    Account.objects.filter(pk=account.pk).fenced(lease).update(balance=2)
account.balance = 3
try:
    account.save(fence=late)
except StaleFence:
    print("refused")
try:
    with transaction.atomic():
        ours.confirm(late, connection)
except LockLost:
    print("lost")
print(Account.objects.get().balance)
for one in (ours, theirs):
    one.close()
"""


class Base(DeclarativeBase):
    """The base of the models of this file."""


class Account(Fenced, Base):
    """A row that is written under the lock."""

    __tablename__ = "stores_account"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)


@pytest.mark.long
def test_django_refuses_a_late_writer(own_postgresql: int) -> None:
    """Locks, fences and data are in one database; the late write changes nothing."""
    done = subprocess.run(  # noqa: S603  (Django can be configured once in a process)
        [sys.executable, "-c", DJANGO, str(own_postgresql)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused", "lost", "2"]


def test_sqlalchemy_refuses_a_late_writer(
    postgresql_store: str, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A session under the lock of a later holder wins, in whichever order they end."""
    engine = create_engine(postgresql_store.replace("://", "+psycopg://", 1))
    Base.metadata.create_all(engine)
    with Session(engine) as session, Session(engine) as other:
        session.add(Account(id=1))
        session.commit()
        late = redlock.acquire(key)
        account = session.get_one(Account, 1)
        with fenced(session, late):
            account.balance = 1
        session.commit()
        redlock.release(late)
        lease = rival.acquire(key)
        theirs = other.get_one(Account, 1)
        rival.confirm(lease, other)
        with fenced(other, lease):
            theirs.balance = 2
        other.commit()

        with pytest.raises(StaleFence), fenced(session, late):
            account.balance = 3
        session.rollback()
        with pytest.raises(LockLost):
            redlock.confirm(late, session)
        session.rollback()

        assert session.get_one(Account, 1).balance == 2
    Base.metadata.drop_all(engine)
    engine.dispose()
    rival.release(lease)
