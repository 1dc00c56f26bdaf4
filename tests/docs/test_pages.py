"""Blocks of pages run, and keys.md lists the keys that are on real nodes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_redlock import LockHeld, Redlock, lock, runtime_of, singleton_task
from celery_redlock.devnodes import DevNodes
from celery_redlock.election import Elector
from celery_redlock.locks.limits import wanted
from celery_redlock.scripts.keys import key_of
from celery_redlock.testing import FakeNodes
from tests.harness.waiting import until

pytestmark = pytest.mark.usefixtures("own_tasks", "apps_are_closed")

DOCS = Path(__file__).parents[2] / "docs"
MIGRATIONS = sorted((DOCS / "how-to").glob("migrate-from-*.md"))
NAMED = sorted(
    {
        (page.name, arguments)
        for page in MIGRATIONS
        for arguments in re.findall(
            r"`@singleton_task\(([^`]*)\)`", page.read_text("utf-8")
        )
    }
)


@pytest.fixture
def app(redlock_fake: FakeNodes) -> Iterator[Celery]:
    """Give an app whose locks are in memory."""
    app = Celery("docs", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = ["redis://redlock-a", "redis://redlock-b"]
    yield app
    app.close()


@pytest.mark.parametrize(
    "page",
    [
        "explanation/duplicates.md",
        "how-to/by-situation.md",
        "how-to/choose-a-policy.md",
    ],
)
def test_blocks_of_the_page_run(app: Celery, page: str) -> None:
    """In their order, each with the names of those before it."""
    names = run_blocks(page, app=app, singleton_task=singleton_task)

    if "found" in names:
        assert names["found"].would_run
    if "settle" in names:
        names["settle"].run(7)


def test_sql_of_the_page_on_fences_refuses_the_late_writer() -> None:
    """The SQL lets the holder write twice, and matches no row for an older fence."""
    page = (DOCS / "how-to" / "fence-writes.md").read_text("utf-8")
    (sql,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    statement = re.sub(r"%\((\w+)\)s", r":\1", sql)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE invoice (id, number, fence)")
    database.execute("INSERT INTO invoice VALUES (1, 'none', 0)")

    matched = [
        database.execute(statement, {"id": 1, "number": n, "fence": n}).rowcount
        for n in (7, 7, 5)
    ]

    assert matched == [1, 1, 0]
    database.close()


def run_blocks(page: str, **given: Any) -> dict[str, Any]:
    """Run the blocks of a page, and return their names."""
    names: dict[str, Any] = {"__name__": "page", **given}  # the module of its tasks
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)  # noqa: S102  (ours)
    return names


def test_page_on_several_keys_runs(app: Celery) -> None:
    """Its blocks take the keys that the page says."""
    names = run_blocks("how-to/several-keys.md")
    redlock = runtime_of(app).redlock

    names["close"](redlock)
    asyncio.run(names["aclose"](redlock))

    assert app.tasks["page.transfer"].lock_key("1", "2", 3) == key_of(
        ["account:2", "account:1"]
    )


def test_page_on_how_many_runs(app: Celery, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tasks have the limits that the page says, and its blocks take permits."""
    names = run_blocks("how-to/limit-how-many.md")
    redlock = runtime_of(app).redlock

    names["import_by_hand"](redlock, "orders.csv")
    names["import_of_a_tenant"](redlock)

    permits = {"imports", *(f"imports##{number}" for number in range(2, 6))}
    assert capsys.readouterr().out.strip() in permits
    assert app.tasks["page.import_file"].lock_wanted("a") == wanted("imports", 5)
    assert app.tasks["page.import_tenant"].lock_wanted("acme", "a") == wanted(
        {"tenant:acme": 3, "imports": 8}
    )
    key, limits = wanted("imports", 5)
    leases = [redlock.acquire(key, limits=limits) for _ in range(5)]
    assert {lease.key for lease in leases} == permits
    with pytest.raises(LockHeld), names["lock"](redlock, "imports", limit=5):
        pytest.fail("a sixth holder")


def test_page_on_how_often_runs(app: Celery) -> None:
    """The block starts ten times, and then says when the next start is due."""
    names = run_blocks("how-to/limit-how-often.md")
    redlock = runtime_of(app).redlock

    said = [names["ask"](redlock) for _ in range(11)]

    assert said[:10] == ["sent"] * 10
    assert re.fullmatch(r"the next start is due in \d+ s", said[10])
    assert app.tasks["page.send_mail"].lock_wanted("a") == wanted(
        "mail-api", rate="10/m"
    )


@pytest.mark.parametrize(("page", "arguments"), NAMED)
def test_decorators_of_migrations_are_accepted(
    app: Celery, page: str, arguments: str
) -> None:
    """Each row that says what to write instead."""
    given = eval(f"dict({arguments})", {})  # noqa: S307  (text of this project)

    @singleton_task(app=app, shared=False, **given)
    def task(a: int = 1) -> int:
        return a

    assert task.lock_key() == task.lock_key(1) == task.lock_key(a=1)


def test_every_migration_names_a_decorator() -> None:
    """No page is without the one line that the reader needs."""
    assert {page for page, _ in NAMED} == {page.name for page in MIGRATIONS}


# -- keys.md -----------------------------------------------------------------------


def documented() -> set[str]:
    """Return the kinds of keys on the page: what follows the prefix."""
    text = (DOCS / "reference" / "keys.md").read_text("utf-8")
    return set(re.findall(r"^\| `redlock:([a-z]+)", text, re.MULTILINE))


def test_every_key_of_a_busy_deployment_is_documented(three_nodes: DevNodes) -> None:
    """Locks, waiting calls, claims, leaders and standbys leave documented keys only."""
    app = Celery("docs", broker="memory://", set_as_current=False)
    app.conf.update(redlock_nodes=three_nodes.urls, redlock_node_timeout=2)

    @singleton_task(app=app, name="rebuild", unique_while="queued")
    def rebuild() -> None:
        """Wait in the queue."""

    rebuild.delay()
    leader, standby = (Redlock(three_nodes.urls, node_timeout=2.0) for _ in range(2))
    left = {"lock", "line", "claim", "meta", "standby"}  # on some of the nodes
    Elector(leader, "election").campaign()
    Elector(standby, "election").campaign()
    nodes = [redis.Redis.from_url(url) for url in three_nodes.urls]
    found: set[str] = set()

    def look() -> bool:
        for node in nodes:
            keys = node.scan_iter("redlock:*")
            found.update(key.decode().split(":")[1] for key in keys)
        return left <= found

    waiter = threading.Thread(target=wait_for, args=(standby, "busy"))
    try:
        with lock(leader, "busy"):
            waiter.start()
            until(look, seconds=20, what=f"{sorted(left)} on the nodes")
    finally:
        waiter.join()

    assert found <= documented()
    for node in nodes:
        node.close()
    app.close()
    leader.close()
    standby.close()


def wait_for(redlock: Redlock, key: str) -> None:
    """Wait for a lock and release it."""
    with lock(redlock, key, wait=30):
        pass
