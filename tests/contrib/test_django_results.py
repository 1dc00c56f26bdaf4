"""Results in Django's database, and the connections of the threads that read them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.harness.programs import end_of

PROJECT = """
import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import django
import psycopg
from celery import Celery
from django.conf import settings
from django.core.management import call_command

url, name, age = sys.argv[1:]
with psycopg.connect(url, autocommit=True) as server:
    server.execute(f"CREATE DATABASE {name}")
    info = server.info
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": name,
                "USER": info.user,
                "HOST": info.host,
                "PORT": info.port,
                "CONN_MAX_AGE": None if age == "kept" else 0,
            }
        },
        INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_results"],
        USE_TZ=True,
    )
django.setup()
call_command("migrate", verbosity=0)
django.db.connections.close_all()

from celery_redlock import runtime_of, singleton_task
from celery_redlock.testing import FakeNodes

app = Celery("site", broker="memory://", set_as_current=False)
app.conf.result_backend = "django_celery_results.backends:DatabaseBackend"
nodes = FakeNodes(3)
app.conf.redlock_nodes = nodes.urls
runtime_of(app).use(nodes.redlock())
OURS = "FROM pg_stat_activity WHERE datname = %s"


@singleton_task(app=app, key="job", unique_while="queued")
def job():
    ...


def on_server(query):
    with psycopg.connect(url, autocommit=True) as server:
        return server.execute(f"{query} {OURS}", (name,)).fetchall()


def is_open():
    return django.db.connection.connection is not None


async def publish():
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    first = await job.adelay()
    same = (await job.adelay()).id == first.id  # the result was looked at
    print("a second call is a duplicate:", same)
    # The server lists a session for a moment after its client has closed it.
    print("keeps a connection:", await asyncio.to_thread(is_open))
    await asyncio.to_thread(job.backend.store_result, first.id, None, "REVOKED")
    on_server("SELECT pg_terminate_backend(pid, 60000)")
    new = (await job.adelay()).id != first.id
    print("a call after its end is new:", new)


asyncio.run(publish())
"""


@pytest.mark.long
@pytest.mark.parametrize("age", ["closed", "kept"])
def test_thread_that_publishes_for_a_coroutine_has_no_dead_connection(
    postgres: str, age: str
) -> None:
    """It keeps none, or replaces one that the server has closed (CONN_MAX_AGE)."""
    url = make_url(postgres).set(drivername="postgresql")
    line = url.render_as_string(hide_password=False), f"results_{age}", age
    done = end_of(sys.executable, "-c", PROJECT, *line)

    assert done.stdout.splitlines() == [
        "a second call is a duplicate: True",
        f"keeps a connection: {age == 'kept'}",
        "a call after its end is new: True",
    ]
    assert "could not be read" not in done.stderr


CHORD = """
import sys

import django
from celery import Celery, chord
from celery.contrib.testing.worker import start_worker
from django.conf import settings
from django.core.management import call_command

engine = "django.db.backends.sqlite3"
settings.configure(
    DATABASES={"default": {"ENGINE": engine, "NAME": sys.argv[1]}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_results"],
    USE_TZ=True,
)
django.setup()
call_command("migrate", verbosity=0)

from celery_redlock import runtime_of, singleton_task
from celery_redlock.testing import FakeNodes

app = Celery("site", broker="memory://")
app.conf.result_backend = "django_celery_results.backends:DatabaseBackend"
nodes = FakeNodes(3)
app.conf.redlock_nodes = nodes.urls
runtime_of(app).use(nodes.redlock())


@app.task
def part(): ...


@singleton_task(app=app)
def body():
    return "ran"


with start_worker(app, pool="solo", perform_ping_check=False):
    sent = chord([part.si(), part.si()], body.si().set(ttl=5))()
    print(sent.get(timeout=60))
"""


@pytest.mark.long
def test_body_of_a_chord_that_gives_a_lock_option_is_sent(tmp_path: Path) -> None:
    """This backend sends it by a function of its own."""
    done = end_of(sys.executable, "-c", CHORD, str(tmp_path / "results.sqlite"))

    assert done.stdout.splitlines() == ["ran"]
