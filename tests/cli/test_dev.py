"""``redlock dev``: nodes on this machine."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import redis

from celery_redlock.core.redlock import Redlock

if TYPE_CHECKING:
    from tests.cli.project import Project


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_dev_runs_nodes_until_it_is_ended(
    project: Project, redis_server: str, ended_by: signal.Signals
) -> None:
    """The nodes vote at once. Ctrl-C and SIGTERM end them too."""
    with project.start("dev", "--nodes", "3", "--json") as dev:
        urls = dev.document()["redlock_nodes"]
        redlock = Redlock(urls, node_timeout=2.0)
        assert redlock.acquire("k").is_valid()
        redlock.close()
        run = dev.interrupt(ended_by)

    assert run.code == 0, run.err
    for url in urls:
        with pytest.raises(redis.ConnectionError), redis.Redis.from_url(url) as client:
            client.ping()


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
