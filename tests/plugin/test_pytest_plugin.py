"""The plugin in projects: with a worker, with other plugins, unused, as documented."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import celery_redlock
from celery_redlock.devnodes import STORES
from tests.conftest import with_long
from tests.harness.programs import end_of
from tests.harness.store_nodes import store_servers

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from celery_redlock import singleton_task

@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": "memory://", "result_backend": "cache+memory://"}

@pytest.fixture
def work(celery_app):
    @singleton_task(app=celery_app, key="{key}")
    def work(key):
        return key
    return work
"""

WITH_WORKER = """
import unittest

import pytest
from celery import Celery
from celery_redlock import runtime_of
from celery_redlock.testing import assert_skipped, held_elsewhere

@pytest.mark.redlock(5)
class TestCase(unittest.TestCase):
    def test_unittest(self):
        assert len(runtime_of(Celery("other")).redlock.labels) == 5

@pytest.mark.redlock
def test_marked(work, celery_worker):
    celery_worker.reload()
    with held_elsewhere(work, "a"):
        assert_skipped(work.delay("a"))

def test_fixtures(work, celery_worker, redlock_fake, redlock_events):
    celery_worker.reload()
    assert work.delay("a").get(timeout=10) == "a"
    redlock_events.wait_for("lock_released")
    assert redlock_events.names == ["lock_acquired", "lock_released"]
"""

MARKS_ALL = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.redlock(5))
"""

LOCKS = """
from celery import Celery
from celery_redlock import runtime_of

def test_nodes_are_in_memory():
    assert len(runtime_of(Celery("app")).redlock.labels) == 5
"""

MARKS_ONE = """
import pytest
from celery import Celery
from celery_redlock import ConfigurationError, runtime_of

@pytest.mark.parametrize("number", [0, pytest.param(5, marks=pytest.mark.redlock(5))])
def test_nodes_of_one_are_in_memory(number):
    if number:
        assert len(runtime_of(Celery("app")).redlock.labels) == number
        return
    with pytest.raises(ConfigurationError):
        runtime_of(Celery("app")).redlock
"""

# The worker of pytest-celery runs in a container; this one runs in a thread.
OWN_WORKER = """
@pytest.fixture
def celery_worker(celery_app):
    from celery.contrib.testing.worker import start_worker
    with start_worker(celery_app, perform_ping_check=False) as worker:
        worker.reload = lambda: None
        yield worker
"""

WITH_NODES = """
import pytest
from celery_redlock import Redlock

@pytest.fixture(scope="session")
def redlock_nodes_options():
    return {"count": 2, "max_ttl": 7}

def test_nodes(redlock_nodes):
    redlock = Redlock(redlock_nodes.urls, ttl=5, max_ttl=7, node_timeout=1)
    with_both = redlock.acquire("a", wait=10)
    assert with_both.votes == 2
    redlock.close()
"""

WITH_STORE = """
import pytest
from celery_redlock import LockUnavailable, Redlock
from celery_redlock.testing import freeze

@pytest.fixture(scope="session")
def redlock_nodes_options():
    return {"store": "KIND", "max_ttl": 7}

@pytest.fixture
def redlock(redlock_nodes):
    redlock = Redlock(redlock_nodes.urls, ttl=6, max_ttl=7, node_timeout=1.5)
    yield redlock
    redlock.close()

def test_store_decides_alone(redlock_nodes, redlock):
    (url,) = redlock_nodes.urls
    assert url.startswith("KIND://")
    lease = redlock.acquire("a")
    assert lease.votes == 1
    redlock.release(lease)

def test_frozen_store_grants_nothing(redlock_nodes, redlock):
    redlock.check()
    with freeze(redlock_nodes), pytest.raises(LockUnavailable):
        redlock.acquire("b")

def test_store_grants_again(redlock):
    redlock.release(redlock.acquire("c", wait=20))
"""

SHOP = """
from celery import Celery
from celery_redlock import singleton_task

app = Celery("shop", broker="memory://")
app.conf.update(
    redlock_nodes=["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"],
    redlock_eager=True,
    redlock_node_timeout=1.0,
)


@singleton_task(app=app, key="{key}")
def work(key):
    return key
"""

USED_BEFORE = """
import pytest
from celery import Celery
from celery_redlock import QuorumUnreachable, runtime_of, singleton_task
from shop import app, work

@pytest.fixture(autouse=True)
def own_nodes(monkeypatch):
    monkeypatch.setitem(app.conf, "redlock_nodes", ["redis://127.0.0.1:1"])

def test_app_is_finalised():
    app.finalize()
    assert "shop.work" in app.tasks

def test_app_has_met_no_quorum():
    runtime = runtime_of(app)
    with pytest.raises(QuorumUnreachable):
        work.apply(("a",)).get()
    assert runtime is runtime_of(app)

@pytest.mark.redlock
def test_app_has_locked_in_memory():
    assert work.apply(("a",)).get() == "a"

def test_other_app_has_been_current():
    other = Celery("other", broker="memory://")
    other.conf.redlock_nodes = ["redis://127.0.0.1:4"]
    other.set_current()
    assert runtime_of(other).redlock
    app.set_current()
"""

USES_NODES = """
import pytest
from celery_redlock import LockUnavailable
from celery_redlock.testing import assert_skipped, freeze, held_elsewhere
from shop import app, work

@pytest.fixture(autouse=True)
def nodes(redlock_nodes):
    app.conf.redlock_nodes = redlock_nodes.urls
    return redlock_nodes

def test_lock_is_granted():
    with work.lock("a") as lease:
        assert lease.votes >= 2

def test_duplicate_is_skipped():
    with held_elsewhere(work, "a"):
        assert_skipped(work.apply(("a",)))

def test_two_nodes_may_not_hang(nodes):
    with freeze(nodes, 0, 1), pytest.raises(LockUnavailable), work.lock("a"):
        pass

def test_one_node_may_hang(nodes):
    with freeze(nodes, 0), work.lock("a") as lease:
        assert lease.votes == 2
"""

PLAIN = """
def test_plain():
    assert True
"""


def has(plugin: str) -> bool:
    """Tell whether a pytest plugin is installed under this name."""
    points = importlib.metadata.entry_points(group="pytest11")
    return plugin in {point.name for point in points}


def pytest_passes(
    pytester: pytest.Pytester, *options: str, seed: int = 0, **outcomes: int
) -> None:
    """Run the project's tests in a new process, and count their outcomes.

    With a seed, their order is random.
    """
    order = (f"--randomly-seed={seed}",) if seed else ("-p", "no:randomly")
    done = pytester.runpytest_subprocess(
        *order, "-p", "no:cacheprovider", "--strict-markers", *options
    )
    done.assert_outcomes(**outcomes)


def test_marker_may_be_added_by_a_conftest(pytester: pytest.Pytester) -> None:
    """A project that locks in memory everywhere marks all of its tests."""
    pytester.makeconftest(MARKS_ALL)
    pytester.makepyfile(LOCKS)

    pytest_passes(pytester, passed=1)


def test_marker_of_one_parameter_is_for_this_one(pytester: pytest.Pytester) -> None:
    """The other parameters of the test use the nodes of the project."""
    pytester.makepyfile(MARKS_ONE)

    pytest_passes(pytester, passed=2)


@pytest.mark.long
@pytest.mark.skipif(not has("celery"), reason="pytest-celery is not installed")
def test_plugin_works_beside_pytest_celery(pytester: pytest.Pytester) -> None:
    """A worker locks on the fake nodes, in any order of the fixtures."""
    pytester.makeconftest(CONFTEST + OWN_WORKER)
    pytester.makepyfile(WITH_WORKER)

    pytest_passes(pytester, passed=3)


@pytest.mark.long
def test_plugin_works_beside_the_plugin_of_celery(pytester: pytest.Pytester) -> None:
    """``celery.contrib.pytest`` has a worker in a thread."""
    pytester.makeconftest('pytest_plugins = ["celery.contrib.pytest"]\n' + CONFTEST)
    pytester.makepyfile(WITH_WORKER)

    pytest_passes(pytester, "-p", "no:celery", passed=3)


@pytest.mark.usefixtures("redis_server")
def test_plugin_starts_real_nodes(pytester: pytest.Pytester) -> None:
    """The project sets their number and their ``max_ttl``."""
    pytester.makepyfile(WITH_NODES)

    pytest_passes(pytester, passed=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", with_long(STORES, "etcd", "zookeeper"))
def test_plugin_starts_a_store_in_place_of_nodes(
    pytester: pytest.Pytester, kind: str
) -> None:
    """The project names the kind, and may freeze all its servers."""
    store_servers(kind)
    pytester.makepyfile(WITH_STORE.replace("KIND", kind))

    pytest_passes(pytester, passed=3)


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("seed", with_long(range(3), "1", "2"))
@pytest.mark.long
def test_plugin_gives_nodes_whatever_ran_before(
    pytester: pytest.Pytester, seed: int
) -> None:
    """Apps were finalised, met no quorum, locked in memory, or met hung nodes."""
    pytester.makepyfile(
        shop=SHOP,
        test_1_before=USED_BEFORE,
        test_2_nodes=USES_NODES,
        test_3_between=USED_BEFORE,
        test_4_nodes=USES_NODES,
    )

    pytest_passes(pytester, seed=seed, passed=16)


@pytest.mark.long
def test_plugin_shows_its_marker(pytester: pytest.Pytester) -> None:
    """``pytest --markers`` explains it."""
    done = pytester.runpytest_subprocess("--markers")

    done.stdout.fnmatch_lines(["@pytest.mark.redlock(*"])


def test_plugin_loads_nothing_before_its_use(tmp_path: Path) -> None:
    """A project that does not use it pays for one small module."""
    (tmp_path / "test_plain.py").write_text(PLAIN)
    program = (
        "import sys, pytest\n"
        "code = pytest.main(['-q', '-p', 'celery_redlock.pytest_plugin',\n"
        "                    '-p', 'no:cacheprovider'])\n"
        "names = ('celery', 'celery_redlock', 'kombu', 'redis')\n"
        "print('loaded', *sorted(name for name in sys.modules\n"
        "                        if name.partition('.')[0] in names))\n"
        "sys.exit(code)\n"
    )
    environment = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PATH": "",
        "PYTHONPATH": str(Path(celery_redlock.__path__[0]).parent),
    }
    done = end_of(sys.executable, "-c", program, cwd=tmp_path, env=environment)

    assert "1 passed" in done.stdout
    (loaded,) = (x for x in done.stdout.splitlines() if x.startswith("loaded"))
    assert loaded.split()[1:] == ["celery_redlock", "celery_redlock.pytest_plugin"]


# -- docs/how-to/testing.md --------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "testing.md"
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = dict(BLOCK.findall(PAGE.read_text("utf-8")))
TESTS = sorted(name for name in FILES if name.startswith("test_"))


def test_page_has_six_files() -> None:
    """It has one test file for each level, and one more for a worker in a thread."""
    assert sorted(FILES) == ["conftest.py", "shop.py", *TESTS]
    assert len(TESTS) == 4
    assert "one project of six files" in PAGE.read_text("utf-8")


@pytest.mark.long
@pytest.mark.usefixtures("redis_server")
def test_page_runs(pytester: pytest.Pytester) -> None:
    """All tests of the page pass, in a project without any other configuration."""
    for name, text in FILES.items():
        (pytester.path / name).write_text(text)

    tests = re.findall(r"^def test_", "".join(FILES.values()), re.MULTILINE)
    pytest_passes(pytester, passed=len(tests))
