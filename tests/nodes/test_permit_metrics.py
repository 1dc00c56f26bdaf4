"""Gauges of permits, as a scrape reads them from real nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.app.runtime import runtime_of
from celery_redlock.devnodes import DevNodes
from celery_redlock.locks.limits import Limit
from celery_redlock.locks.redlock import Redlock
from celery_redlock.metrics.collector import StateCollector
from tests.nodes.support import PATIENT, client

Samples = dict[tuple[str, str], float]


@pytest.fixture
def app(three_nodes: DevNodes, own_tasks: None) -> Iterator[Celery]:
    """Give an app on three nodes, with the tasks of the test alone."""
    app = Celery("gauges", set_as_current=False)
    app.conf.redlock_nodes = three_nodes.urls
    app.conf.redlock_node_timeout = PATIENT
    yield app
    runtime_of(app).redlock.close()
    app.close()


@pytest.fixture
def service(three_nodes: DevNodes) -> Iterator[Redlock]:
    """Give the lock service of a worker elsewhere."""
    with client(three_nodes) as redlock:
        redlock.check()
        yield redlock


@pytest.fixture
def samples(app: Celery) -> Iterator[Callable[[], Samples]]:
    """Give a function that scrapes, and returns the gauges that have a key."""
    collector = StateCollector(app)

    def scrape() -> Samples:
        return {
            (sample.name.removeprefix("redlock_"), sample.labels["key"]): sample.value
            for family in collector.collect()
            for sample in family.samples
            if "key" in sample.labels
        }

    yield scrape
    collector.close()


def task_of(app: Celery, name: str, **options: Any) -> Any:
    """Return a task with these lock options."""

    def body(tenant: str = "") -> None:
        """Do nothing."""

    body.__name__ = name
    return singleton_task(app=app, name=name, shared=False, **options)(body)


def take(service: Redlock, task: Any, *args: Any) -> Any:
    """Take the permits of a call, as a worker elsewhere does."""
    key, limits = task.lock_wanted(*args)
    return service.acquire(key.split("\n"), limits=limits)


def test_permits_of_one_key_are_gauges(
    app: Celery, service: Redlock, samples: Callable[[], Samples]
) -> None:
    """A key that is the same for all calls has them from the beginning."""
    task = task_of(app, "imports", key="imports", limit=3, rate="10/m")
    before = samples()
    lease = take(service, task)
    take(service, task)
    during = samples()
    service.release(lease)
    after = samples()

    names = ("permits_in_use", "permits_free", "starts_taken", "starts_free")
    assert [before[name, "imports"] for name in names] == [0, 3, 0, 10]
    assert [during[name, "imports"] for name in names] == [2, 1, 2, 8]
    assert [after[name, "imports"] for name in names] == [1, 2, 2, 8]


def test_permits_that_nodes_may_have_forgotten_are_not_called_free(
    app: Celery,
    service: Redlock,
    samples: Callable[[], Samples],
    three_nodes: DevNodes,
) -> None:
    """A majority has restarted, answers, and cannot tell: there are no gauges."""
    take(service, task_of(app, "imports", key="imports", limit=3))

    three_nodes.nodes[0].restart()
    of_one = samples()
    three_nodes.nodes[1].restart()
    of_two = samples()

    assert of_one == {("permits_in_use", "imports"): 1, ("permits_free", "imports"): 2}
    assert of_two == {}


def test_permit_that_one_node_may_have_forgotten_is_not_called_free(
    app: Celery,
    service: Redlock,
    samples: Callable[[], Samples],
    three_nodes: DevNodes,
) -> None:
    """A majority granted it. One of the two has restarted, answers, and cannot tell."""
    task = task_of(app, "imports", key="imports", limit=3)
    take(service, task)
    permits = map("redlock:lock:imports{}".format, ("", "##2", "##3"))
    three_nodes.nodes[2].command("DEL", *permits)
    three_nodes.nodes[1].restart()

    (limit,) = task.explain().limits
    assert (limit.in_use, limit.free) == (0, 2)
    counts = {("permits_in_use", "imports"): 0, ("permits_free", "imports"): 2}
    assert samples() == counts


def test_permit_that_may_have_a_holder_is_not_called_free(
    app: Celery,
    service: Redlock,
    samples: Callable[[], Samples],
    three_nodes: DevNodes,
) -> None:
    """One node of three names it, one does not, and one is down."""
    lease = take(service, task_of(app, "imports", key="imports", limit=3))
    three_nodes.nodes[0].command("DEL", f"redlock:lock:{lease.key}")
    three_nodes.nodes[1].kill()

    found = samples()

    assert found == {("permits_in_use", "imports"): 0, ("permits_free", "imports"): 2}


def test_permits_are_gauges_by_template(
    app: Celery, service: Redlock, samples: Callable[[], Samples]
) -> None:
    """The number of keys has no limit, so no key is a label."""
    task = task_of(app, "imports", keys={"tenant:{tenant}": 2, "imports": 9})
    task_of(app, "hashed", limit=4)
    for tenant in ("a", "a", "b"):
        take(service, task, tenant)
    take(service, app.tasks["hashed"], "x")
    service.acquire("tenant:a#9")  # a plain lock
    service.acquire("other", limits=(Limit("other", 5),))  # without a task

    assert samples() == {
        ("permits_in_use", "tenant:{tenant}"): 3,
        ("permits_free", "tenant:{tenant}"): 1,
        ("permits_in_use", "imports"): 3,
        ("permits_free", "imports"): 6,
        ("permits_in_use", "hashed"): 1,
        ("permits_free", "hashed"): 3,
    }


@pytest.mark.parametrize("first", ["any", "tenants"])
def test_permit_is_counted_for_the_template_that_says_most_of_its_key(
    app: Celery, service: Redlock, samples: Callable[[], Samples], first: str
) -> None:
    """A template that matches all keys gets those that no other one matches."""
    templates = {"any": "{tenant}", "tenants": "tenant:{tenant}"}
    for name in sorted(templates, key=first.__ne__):
        task_of(app, name, key=templates[name], limit=2)
    app.finalize()
    take(service, app.tasks["tenants"], "a")
    take(service, app.tasks["any"], "other")

    found = samples()

    assert found["permits_in_use", "tenant:{tenant}"] == 1
    assert found["permits_in_use", "{tenant}"] == 1


def test_app_whose_tasks_are_all_of_our_class_has_gauges(
    app: Celery, service: Redlock, samples: Callable[[], Samples]
) -> None:
    """Celery's own tasks are of that class then, and take no lock."""
    app.task_cls = SingletonTask
    task_of(app, "imports", key="imports", limit=3)
    app.finalize()

    assert samples() == {
        ("permits_in_use", "imports"): 0,
        ("permits_free", "imports"): 3,
    }


def test_app_without_limits_has_no_gauges_of_permits(
    app: Celery, service: Redlock, samples: Callable[[], Samples]
) -> None:
    """A scrape then does not look for permits."""
    task_of(app, "imports", key="imports:{tenant}")
    service.acquire("imports:a")

    assert samples() == {}


def test_scrape_of_the_page_reads_the_locks_once(
    app: Celery, three_nodes: DevNodes
) -> None:
    """A node that hangs delays it once, and not for each gauge."""
    task_of(app, "sync", key="sync:{tenant}", limit=3)
    collector = StateCollector(app, counts_locks=True)
    before = scans(three_nodes)

    names = {family.name for family in collector.collect()}

    assert "redlock_locks_held" in names
    assert scans(three_nodes) == before + 1
    collector.close()


def scans(nodes: DevNodes) -> int:
    """Return how many times the keys of the first node were listed, a few at a time."""
    stats: Any = nodes.nodes[0].command("INFO", "commandstats")
    return int(stats.get("cmdstat_scan", {}).get("calls", 0))
