"""``redlock dev``: nodes on this machine."""

from __future__ import annotations

import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
import redis
from celery import Celery

from celery_redlock.devnodes import STORES
from celery_redlock.errors import LockUnavailable
from celery_redlock.locks.redlock import Redlock
from tests.cli.project import Project, run_here
from tests.conftest import with_long
from tests.harness.processes import descendants, is_alive
from tests.harness.store_nodes import store_servers


@pytest.mark.parametrize(
    "ended_by",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
)
def test_dev_runs_nodes_until_it_is_ended(
    project: Project, redis_server: str, ended_by: signal.Signals
) -> None:
    """The nodes vote at once. Ctrl-C and SIGTERM end them too."""
    with project.start("dev", "--nodes", "3", "--json") as dev:
        urls = dev.document()["redlock_nodes"]
        redlock = Redlock(urls, node_timeout=2.0)
        assert redlock.acquire("k").is_valid()
        redlock.close()
        servers = descendants(dev.process.pid)
        run = dev.interrupt(ended_by)

    assert run.code == 0, run.err
    assert len(servers) == len(urls) == 3
    # By their pids: another program may have their ports by now.
    assert not [pid for pid in servers if is_alive(pid)]


@pytest.mark.long
def test_dev_in_the_background_ends_by_sigterm(
    project: Project, redis_server: str
) -> None:
    """A shell starts ``redlock dev &`` with Ctrl-C ignored; SIGTERM ends it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        dev = project.start("dev", "--nodes", "1", "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    with dev:
        dev.document()
        dev.process.send_signal(signal.SIGINT)
        run = dev.interrupt(signal.SIGTERM)

    assert run.code == 0, run.err


def test_dev_prints_settings_that_can_be_pasted(
    project: Project, redis_server: str
) -> None:
    """The indented lines are Python that sets the nodes and max_ttl."""
    with project.start("dev", "--nodes", "2", "--max-ttl", "40") as dev:
        lines = [dev.line()]
        while "Ctrl-C" not in lines[-1]:
            lines.append(dev.line())
        dev.interrupt()

    pasted = "\n".join(line.strip() for line in lines if line.startswith("    "))
    settings: dict[str, object] = {}
    exec(pasted.replace("app.conf.", ""), settings)  # noqa: S102  (our own output)
    assert len(settings["redlock_nodes"]) == 2  # type: ignore[arg-type]
    assert settings["redlock_max_ttl"] == 40


def test_dev_says_of_no_node_that_it_was_stopped_if_it_had_gone(
    project: Project, redis_server: str
) -> None:
    """The last line counts no nodes: a user has ended one of them before."""
    with project.start("dev", "--nodes", "2") as dev:
        lines = [dev.line()]
        while "Ctrl-C" not in lines[-1]:
            lines.append(dev.line())
        (url, *_) = re.findall(r"redis://[^\"']+", "".join(lines))
        with redis.Redis.from_url(url) as node:
            node.shutdown(nosave=True)
        run = dev.interrupt()

    assert run.code == 0, run.err
    assert run.out.splitlines()[-1] == "Everything is stopped, and the data are lost."


@pytest.mark.long
@pytest.mark.parametrize("store", with_long(STORES, "etcd", "zookeeper"))
def test_dev_runs_a_store_in_place_of_nodes(project: Project, store: str) -> None:
    """The settings have one URL, which grants locks at once, until Ctrl-C."""
    store_servers(store)
    with project.start("dev", "--store", store, "--max-ttl", "40", "--json") as dev:
        document = dev.document()
        (url,) = document["redlock_nodes"]
        with closing(Redlock([url], max_ttl=40.0, node_timeout=5.0)) as redlock:
            assert redlock.acquire("k").is_valid()
        run = dev.interrupt()

    assert run.code == 0, run.err
    assert url.startswith(f"{store}://")
    assert document["redlock_max_ttl"] == 40
    with (
        closing(Redlock([url], connect_timeout=0.5)) as redlock,
        pytest.raises(LockUnavailable),
    ):
        redlock.acquire("k")


@pytest.mark.parametrize(
    ("store", "package"),
    [
        ("etcd", "etcd-server"),
        pytest.param("zookeeper", "zookeeper", marks=pytest.mark.long),
    ],
)
def test_dev_names_the_package_of_a_server_that_is_missing(
    project: Project, store: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server runs then."""
    store_servers(store)
    monkeypatch.setenv("PATH", "/nonexistent")
    run = project.redlock("dev", "--store", store)

    assert run.code == 1
    assert "No server was started." in run.err
    assert f"(on Debian: {package})" in run.err
    assert "Traceback" not in run.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "driver"),
    [
        ("postgresql", "psycopg"),
        pytest.param("etcd", "lupa", marks=pytest.mark.long),
        pytest.param("zookeeper", "kazoo", marks=pytest.mark.long),
    ],
)
def test_dev_names_the_extra_of_a_driver_that_is_missing(
    project: Project, store: str, driver: str, tmp_path: Path
) -> None:
    """The error is a command that can be pasted."""
    (tmp_path / f"{driver}.py").write_text("raise ImportError('it is missing')")
    run = project.run("dev", "--store", store)

    assert run.code
    assert f"pip install 'celery-redlock[{store}]'" in run.err
    assert "Traceback" not in run.err


def test_dev_has_no_number_of_nodes_for_a_store(project: Project) -> None:
    """A store has as many servers as it needs."""
    run = project.redlock("dev", "--store", "etcd", "--nodes", "3")

    assert run.code == 2
    assert "--store has no --nodes" in run.err


def test_dev_asks_for_no_app() -> None:
    """It needs none: an error says what is wrong, and not to name one."""
    run = run_here(Celery("default"), "dev", "--nodes", "0")

    assert run.code == 2
    assert run.err.startswith("Error: 0 nodes cannot vote")
