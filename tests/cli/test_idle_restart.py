"""Nodes that restarted while no task wanted a lock: what each command says of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import runtime_of, web
from tests.cli.app import new_app
from tests.cli.project import Project
from tests.nodes.support import MAX_TTL, SHORT, client, until

SETTINGS = {
    "redlock_ttl": MAX_TTL,
    "redlock_max_ttl": MAX_TTL,
    "redlock_node_timeout": 0.15,
}


@pytest.fixture
def restarted(start_project: Callable[..., Project]) -> Project:
    """Give a project on one node that has voted, and restarted empty since."""
    project = start_project(1, SETTINGS, max_ttl=MAX_TTL)
    project.nodes[0].restart()
    return project


@pytest.fixture
def app(restarted: Project) -> Iterator[Celery]:
    """Give the app of another process of this project."""
    app = new_app({"redlock_nodes": restarted.urls} | SETTINGS)
    yield app
    runtime_of(app).redlock.close()
    app.close()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("doctor", "--ignore", "ttl", "--ignore", "slow"), 0, r"0  votes  "),
        (("ls",), 0, r"0 locks held"),
        (("show", "k"), 1, r"k is not held"),
        (("explain", "proj.send_invoice", "--args", "[1]"), 0, r"it would run"),
        (("init",), 0, r"The node votes now"),
    ],
    ids=lambda it: it[0] if isinstance(it, tuple) else "",
)
def test_command_says_that_the_node_votes(
    restarted: Project, words: tuple[str, ...], code: int, said: str
) -> None:
    """No lock was asked for. The command asks, and says what a task would get."""

    def agrees() -> bool:
        run = restarted.redlock(*words)
        return run.code == code and re.search(said, run.out) is not None

    until(agrees, what=f"{words[0]}: {said}")


def test_health_check_says_that_locks_are_granted(app: Celery) -> None:
    """Only a probe has asked since the restart."""
    page = web.page(app)
    answers: list[str] = []

    def ask() -> bool:
        environ: dict[str, Any] = {"PATH_INFO": "/healthz", "REQUEST_METHOD": "GET"}
        list(page(environ, lambda status, *_: answers.append(status)))
        return answers[-1] == "200 OK"

    until(ask, what="200 OK")


def test_metrics_say_that_the_node_votes(app: Celery) -> None:
    """Only a scrape has asked since the restart."""
    collector = pytest.importorskip("celery_redlock.metrics.collector")
    gauges = collector.StateCollector(app)

    def votes() -> bool:
        found = {gauge.name: gauge.samples for gauge in gauges.collect()}
        return [one.value for one in found["redlock_node_votes"]] == [1.0]

    until(votes, what="the vote in a scrape")
    gauges.close()


def test_node_that_is_named_alone_founds_no_deployment(
    start_project: Callable[..., Project],
) -> None:
    """One of three is looked at with --node after a restart. It joins the others."""
    project = start_project(3, SETTINGS, max_ttl=MAX_TTL)
    project.nodes[0].restart()

    alone = ("--node", project.urls[0])
    runs = [
        project.redlock(*words, *alone)
        for words in (
            ("ls",),
            ("doctor",),
            ("explain", "proj.send_invoice", "--args", "[1]"),
        )
    ]
    collector = pytest.importorskip("celery_redlock.metrics.collector")
    with client(project.urls[:1], **SHORT) as part:
        part.asks_for_votes = False
        gauges = collector.StateCollector(None, part)
        list(gauges.collect())
        gauges.close()

    assert "is new or may have forgotten locks" in runs[0].out
    assert project.nodes[0].command("EXISTS", "redlock:meta") == 0

    def states() -> list[str]:
        document = project.redlock("doctor", "--json").document
        return [node["state"] for node in document["nodes"]]

    until(lambda: states() == ["votes"] * 3, what="three votes")


# -- doctor --wait -----------------------------------------------------------------


def test_restart_of_one_idle_node_after_the_other_leaves_locks_available(
    start_project: Callable[..., Project],
) -> None:
    """As the page says: `doctor --wait` between two restarts, and no task meanwhile."""
    project = start_project(3, SETTINGS, max_ttl=MAX_TTL)

    for index, node in enumerate(project.nodes):
        node.restart()
        waited = project.redlock("doctor", "--wait", "60", "--all-nodes")
        assert waited.code == 0, waited.out
        assert waited.out.endswith("3 of 3 nodes vote.\n")
        with client(project.urls, **SHORT) as worker:
            worker.release(worker.acquire(f"invoice:{index}", wait=20))


def test_wait_ends_as_soon_as_a_majority_votes(project: Project) -> None:
    """One node is down: for all of them there is no wait that helps."""
    project.kill(2)

    majority = project.redlock("doctor", "--wait", "60")
    everything = project.redlock("doctor", "--wait", "0", "--all-nodes", "--json")

    assert majority.code == 0
    assert majority.out.endswith("2 of 3 nodes vote.\n")
    assert everything.code == 1
    assert (everything.document["votes"], everything.document["needed"]) == (2, 3)


def test_wait_without_a_majority_ends_with_3(project: Project) -> None:
    """The time is over, and no lock can be granted."""
    project.kill(1, 2)

    run = project.redlock("doctor", "--wait", "0")

    assert run.code == 3
    assert run.out.endswith("1 of 3 nodes vote, 2 are needed.\n")
    assert run.out.count("refused the connection") == 2


def test_wait_may_be_as_long_as_a_quarantine(project: Project) -> None:
    """The doctor itself advises a redlock_max_ttl of an hour, for a rate."""
    assert project.redlock("doctor", "--wait", "86400").code == 0
    assert project.redlock("doctor", "--wait", "nan").code == 2


def test_all_nodes_needs_a_wait(project: Project) -> None:
    """A typo is no diagnosis with another exit code."""
    run = project.redlock("doctor", "--all-nodes")

    assert run.code == 2
    assert "--all-nodes needs --wait SECONDS." in run.err
