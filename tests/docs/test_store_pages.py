"""The pages about stores and about effects exactly once: every block of theirs runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.reader import blocks_of
from tests.harness.programs import end_of
from tests.harness.store_nodes import store_servers

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
TITLE = re.compile(r"# (\S+\.py)\n")
OF_SQLALCHEMY = "sqlalchemy"
SETTINGS = """
import os
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "redlock",
    "HOST": "127.0.0.1", "PORT": os.environ["PORT_OF_DATABASE"],
}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
INSTALLED_APPS = ["celery_redlock.contrib.django", "shop"]
USE_TZ = True
"""
CELERY = """
from celery import Celery
app = Celery("shop", broker="memory://")
app.conf.update(task_always_eager=True, task_store_eager_result=False)
app.conf.update(redlock_eager=True, redlock_node_timeout=4)
"""
MODELS = """
from django.db import models
class Invoice(models.Model):
    paid = models.BooleanField(default=False)
class Order(models.Model):
    paid = models.BooleanField(default=False)
class Account(models.Model):
    paid = models.BooleanField(default=False)
"""
SHIPPING = """
from celery import shared_task
shipped = []
@shared_task
def ship(order_id):
    shipped.append(order_id)
"""
OF_DJANGO = """
import json, re, sys
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from celery_redlock import lock, runtime_of
from celery_redlock.contrib.django.models import OutboxMessage
from celery_redlock.wire.url import parse_node
from shop.celery import app
from shop.models import Account, Invoice, Order
from shop.shipping import shipped
blocks = json.loads(Path("blocks.json").read_text())
call_command("migrate", verbosity=0)
with connection.schema_editor() as editor:
    for model in (Account, Invoice, Order):
        editor.create_model(model)
for block in blocks:
    if "current_lease" not in block:
        exec(block)
    for nodes in re.findall(r"redlock_nodes = (\\[.*\\])", block):
        [parse_node(node) for node in json.loads(nodes)]
app.conf.redlock_nodes = ["django://default"]
redlock = runtime_of(app).redlock
redlock.initialize()

from shop.tasks import settle
invoice = Invoice.objects.create()
settle.delay(invoice.pk).get()
invoice.refresh_from_db()
assert invoice.paid

from shop.charges import charge
assert charge.delay(7).get() is None

from shop.views import buy
assert buy(None).status_code == 202
order = Order.objects.get()
assert (order.paid, shipped) == (True, [order.pk])
assert not OutboxMessage.objects.exists()

(ensure,) = (block for block in blocks if "current_lease" in block)
account = Account.objects.create(pk=1)
with lock(redlock, "account:1"):
    exec(ensure)
account.refresh_from_db()
assert account.paid
"""
OF_SESSIONS = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
engine = create_engine("sqlite:///shop.db")
class Base(DeclarativeBase): ...
class Invoice(Base):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[bool] = mapped_column(default=False)
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
"""
WITH_SESSIONS = """
import os
from celery_redlock import runtime_of
from sqlalchemy.orm import Session
from shop.celery import app
app.set_default()
app.conf.redlock_nodes = [os.environ["NODE"]]
from shop.models import Base, Invoice, Order, engine
from shop import payments
Base.metadata.create_all(engine)
runtime_of(app).redlock.initialize()
with Session(engine) as session, session.begin():
    session.add(Invoice(id=1))
payments.buy()
with Session(engine) as session:
    assert session.get_one(Order, 1)
    assert session.get_one(Invoice, 1).paid
assert payments.outbox.waiting().messages == 0
"""


@pytest.fixture
def port() -> Iterator[str]:
    """Give the port of a PostgreSQL without our table."""
    with store_servers("postgresql", initialize=False) as store:
        yield re.findall(r":(\d+)/", store.urls[0])[0]


def python_of(page: str, *, sqlalchemy: bool = False) -> list[str]:
    """Return the Python of a page that uses SQLAlchemy, or that does not."""
    blocks = [
        text
        for kind, text in blocks_of((PAGES / page).read_text("utf-8"))
        if kind == "python"
    ]
    return [text for text in blocks if (OF_SQLALCHEMY in text) == sqlalchemy]


def run(folder: Path, files: dict[str, str], program: str, **variables: str) -> None:
    """Write the files of a project, and run a program in its folder."""
    (folder / "shop").mkdir()
    for name, text in {"shop/__init__.py": "", **files, "program.py": program}.items():
        (folder / name).write_text(text)
    environment = {"PYTHONPATH": ":".join([str(folder), *sys.path[1:]]), **variables}
    end_of(sys.executable, "program.py", cwd=folder, env=environment)


def titled(blocks: list[str]) -> dict[str, str]:
    """Return the blocks that say in which file they are."""
    return {found[1]: text for text in blocks if (found := TITLE.match(text))}


@pytest.mark.long
def test_blocks_with_django_run(tmp_path: Path, port: str) -> None:
    """Their tasks, the view and `ensure` do what the pages say, on one PostgreSQL."""
    pytest.importorskip("django")
    blocks = [
        *python_of("exactly-once.md"),
        *python_of("use-postgresql.md"),
        *python_of("use-etcd-or-zookeeper.md"),
    ]
    files = titled(blocks)
    assert sorted(files) == [
        f"shop/{name}.py" for name in ("charges", "payments", "tasks", "views")
    ]
    others = [text for text in blocks if text not in files.values()]
    run(
        tmp_path,
        {
            **files,
            "settings.py": SETTINGS,
            "shop/celery.py": CELERY,
            "shop/models.py": MODELS,
            "shop/shipping.py": SHIPPING,
            "blocks.json": json.dumps(others),
        },
        OF_DJANGO,
        DJANGO_SETTINGS_MODULE="settings",
        PORT_OF_DATABASE=port,
    )


@pytest.mark.long
def test_blocks_with_sqlalchemy_run(tmp_path: Path, port: str) -> None:
    """The message that is written with the order starts the task with its session."""
    pytest.importorskip("sqlalchemy")
    files = titled(blocks := python_of("exactly-once.md", sqlalchemy=True))
    assert len(files) == len(blocks) == 2
    run(
        tmp_path,
        {**files, "shop/celery.py": CELERY, "shop/models.py": OF_SESSIONS},
        WITH_SESSIONS,
        NODE=f"postgresql://redlock@127.0.0.1:{port}/postgres",
    )
