"""The models and tasks of the page on fences: they run, and a late write is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.reader import blocks_of
from tests.harness.programs import end_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fence-writes.md"
TITLE = re.compile(r"# (\S+\.py)\n")
IN_MEMORY = """
from celery import Celery
from celery_redlock import StaleFence, runtime_of
from celery_redlock.testing import FakeNodes
app = Celery("shop", broker="memory://")
app.conf.update(task_always_eager=True, redlock_eager=True)
app.conf.redlock_nodes = ["redis://redlock-a"]
app.set_default()
runtime_of(app).use(FakeNodes().redlock())
def is_refused(call):
    return isinstance(call.get(propagate=False), StaleFence)
"""
WITH_DJANGO = """
import django
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["shop"], DEFAULT_AUTO_FIELD="django.db.models.AutoField",
)
django.setup()
from django.db import connection
from shop.models import Invoice
from shop.tasks import number_invoice
with connection.schema_editor() as editor:
    editor.create_model(Invoice)
Invoice(pk=1).save()
number_invoice.delay(1, 7).get()
number_invoice.delay(1, 8).get()
assert Invoice.objects.get().number == 8
later = Invoice.objects.get().fence + 10**9
assert Invoice.objects.filter(pk=1).fenced(later).update(paid=True) == 1
assert is_refused(number_invoice.delay(1, 9))
assert Invoice.objects.get().number == 8
"""
WITH_SQLALCHEMY = """
from celery_redlock.contrib.sqlalchemy import fenced, update_fenced
from sqlalchemy import update
from sqlalchemy.orm import Session
from shop.invoices import Base, Invoice, engine, number_invoice
Base.metadata.create_all(engine)
with Session(engine) as session, session.begin():
    session.add(Invoice(id=1))
number_invoice.delay(1, 7).get()
number_invoice.delay(1, 8).get()
with Session(engine) as session, session.begin():
    invoice = session.get_one(Invoice, 1)
    assert invoice.number == 8
    update_fenced(session, update(Invoice).values(number=9), invoice.fence + 10**9)
assert is_refused(number_invoice.delay(1, 10))
with Session(engine) as session:
    assert session.get_one(Invoice, 1).number == 9
"""


@pytest.mark.parametrize(
    ("package", "program"),
    [("django", WITH_DJANGO), ("sqlalchemy", WITH_SQLALCHEMY)],
    ids=["Django", "SQLAlchemy"],
)
def test_page_on_fences_refuses_the_late_writer(
    tmp_path: Path, package: str, program: str
) -> None:
    """Its task writes the row again and again, until a later holder has written it."""
    for needed in (package, "lupa"):
        pytest.importorskip(needed)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    for language, code in blocks_of(PAGE.read_text("utf-8")):
        if language == "python" and (title := TITLE.match(code)):
            (tmp_path / title[1]).write_text(code)
    (tmp_path / "program.py").write_text(IN_MEMORY + program)

    path = ":".join([str(tmp_path), *sys.path[1:]])
    end_of(sys.executable, "program.py", cwd=tmp_path, env={"PYTHONPATH": path})
