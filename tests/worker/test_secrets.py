"""Passwords of the lock nodes appear nowhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from celery_redlock import QuorumUnreachable
from tests.harness.deployment import Deployment, Site
from tests.harness.lock_nodes import LockNodes
from tests.harness.programs import end_of
from tests.harness.waiting import until

SECRET = "correct-horse"


def with_password(url: str) -> str:
    """Return the URL with the secret; the servers accept every password."""
    user = urlsplit(url).username
    place = url.rpartition("@")[2] if user else url.partition("://")[2]
    return f"{urlsplit(url).scheme}://{user or 'default'}:{SECRET}@{place}"


@pytest.fixture(scope="module")
def here(site: Site, frail_nodes: LockNodes) -> Iterator[Deployment]:
    """Give a worker that logs at DEBUG, with passwords in its settings."""
    settings = {"redlock_nodes": [with_password(url) for url in frail_nodes.urls]}
    with site.deploy(frail_nodes, settings=settings, options=["-l", "DEBUG"]) as it:
        yield it


@pytest.mark.long
def test_report_shows_no_password(here: Deployment) -> None:
    """Users paste the output of ``celery report`` into public trackers."""
    worker = here.worker.container

    report = end_of(
        *(sys.executable, "-m", "celery", "-A", "tests.worker.project.app", "report"),
        cwd=worker.log_file.parent,
        variables=worker.environment,
    ).stdout

    assert "redlock_nodes" in report
    assert SECRET not in report


def test_inspect_conf_shows_no_password(here: Deployment) -> None:
    """A worker shows its settings to ``inspect conf`` without passwords."""
    inspect = here.app.control.inspect([here.worker.container.node_name], timeout=5)

    conf = until(inspect.conf)

    assert "redlock_nodes" in json.dumps(conf)
    assert SECRET not in json.dumps(conf)


def test_logs_and_results_show_no_password(here: Deployment, key: str) -> None:
    """Runs, conflicts and nodes that are down put no password into logs or errors."""
    first = here.begin("job", key)
    with here.nodes.majority_paused(), pytest.raises(QuorumUnreachable) as failure:
        here.send("unreachable-raise", f"{key}-2").get(timeout=60)
    here.finish(key, first)

    assert "unreachable-raise" in here.logs()
    assert SECRET not in here.logs()
    assert SECRET not in str(failure.value)
