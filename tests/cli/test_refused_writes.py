"""Nodes that answer and refuse each write: no tool says that they vote."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from celery import Celery

from celery_redlock import runtime_of, web
from celery_redlock.devnodes import DevNode
from celery_redlock.operations.inspect import NodeState, node_status
from tests.cli.app import new_app
from tests.cli.project import Project, claim
from tests.nodes.support import locks

REFUSALS = {
    "OOM": ("maxmemory", "1"),
    "NOREPLICAS": ("min-replicas-to-write", "1"),
}


@contextlib.contextmanager
def refused(refusal: str, nodes: Sequence[DevNode]) -> Iterator[None]:
    """Let these nodes refuse each write for a block."""
    setting, value = REFUSALS[refusal]
    for node in nodes:
        node.command("CONFIG", "SET", setting, value)
    try:
        yield
    finally:
        for node in nodes:
            node.command("CONFIG", "SET", setting, "0")


@pytest.fixture(params=REFUSALS)
def refusing(request: pytest.FixtureRequest, project: Project) -> Iterator[str]:
    """Let two of the nodes refuse each write; give how their error begins."""
    with refused(request.param, project.nodes[1:]):
        yield request.param


@pytest.fixture
def app(project: Project) -> Iterator[Celery]:
    """Give the app of another process of this project."""
    app = new_app({"redlock_nodes": project.urls})
    yield app
    runtime_of(app).redlock.close()
    app.close()


def test_doctor_names_the_refusal_and_that_nothing_can_be_locked(
    project: Project, refusing: str
) -> None:
    """One error for each node, in the words of its server, and the remedy."""
    run = project.redlock("doctor", "--json")

    found = [one for one in run.document["findings"] if one["severity"] == "error"]
    assert run.code == 3
    assert [one["code"] for one in found] == ["no-quorum", *["refused-writes"] * 2]
    assert [one["about"] for one in found[1:]] == [project.label(1), project.label(2)]
    # Not at which line of which script, which servers add.
    told = [one["fact"].partition(" grants no lock: ")[2] for one in found[1:]]
    assert all(words.startswith(f"{refusing} ") for words in told)
    assert "script" not in str(told)
    assert all(REFUSALS[refusing][0] in one["remedy"] for one in found[1:])


def test_doctor_tells_a_node_whose_writes_are_paused_from_one_that_is_down(
    project: Project,
) -> None:
    """It runs and can be read: to start it again would lose its locks."""
    project.nodes[1].command("CLIENT", "PAUSE", "60000", "WRITE")

    run = project.redlock("doctor", "--json")

    found = {one["code"]: one for one in run.document["findings"]}
    assert "unreachable" not in found
    assert "has not finished a write within 1 s" in found["refused-writes"]["fact"]
    assert "CLIENT UNPAUSE" in found["refused-writes"]["remedy"]
    assert "Do not restart it" in found["refused-writes"]["remedy"]


def test_init_refers_to_the_doctor_for_a_node_that_refuses_writes(
    project: Project, refusing: str
) -> None:
    """It runs, so that to start it is no remedy. The doctor knows each refusal."""
    run = project.redlock("init", "--yes")

    assert run.code == 1
    assert f"{refusing} " in run.err
    assert "nothing was changed. `celery -A proj redlock doctor` says what" in run.err
    assert "Start or repair it" not in run.err


def test_init_says_what_to_do_with_a_node_whose_writes_are_paused(
    project: Project,
) -> None:
    """One remedy, that of the node: none contradicts it."""
    project.nodes[1].command("CLIENT", "PAUSE", "60000", "WRITE")

    run = project.redlock("init", "--yes")

    assert run.code == 1
    assert "CLIENT UNPAUSE" in run.err
    assert "nothing was changed" in run.err
    assert "Start or repair it" not in run.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("doctor", "--wait", "0"), "1 of 3 nodes vote, 2 are needed."),
        (("explain", "proj.send_invoice", "--args", "[42]"), "Only 1 of 3 nodes gave"),
        (("init", "--yes"), "nothing was changed"),
    ],
    ids=lambda it: it[0] if isinstance(it, tuple) else "",
)
def test_command_says_that_too_few_nodes_vote(
    project: Project, refusing: str, words: tuple[str, ...], said: str
) -> None:
    """It tells the reason, and not what would be so with a majority."""
    run = project.redlock(*words)

    assert run.code == (1 if words[0] == "init" else 3)
    assert said in run.out + run.err
    assert refusing in run.out


def test_health_check_and_metrics_say_that_too_few_nodes_vote(
    app: Celery, refusing: str
) -> None:
    """A monitor hears of it before a user does."""
    answers: list[str] = []
    environ: dict[str, Any] = {"PATH_INFO": "/healthz", "REQUEST_METHOD": "GET"}
    list(web.page(app)(environ, lambda status, *_: answers.append(status)))
    collector = pytest.importorskip("celery_redlock.metrics.collector")
    gauges = collector.StateCollector(app)
    found = {gauge.name: gauge.samples for gauge in gauges.collect()}
    gauges.close()

    assert refusing
    assert answers == ["503 Service Unavailable"]
    assert [one.value for one in found["redlock_node_up"]] == [1.0, 1.0, 1.0]
    assert [one.value for one in found["redlock_node_votes"]] == [1.0, 0.0, 0.0]


def test_node_that_takes_writes_again_votes(project: Project) -> None:
    """The look itself changes nothing that lasts, and locks are told meanwhile."""
    lease = project.hold("held")
    node = project.nodes[1]
    node.command("CONFIG", "SET", "maxmemory", "1")
    refused = node_status(project.service)
    listed = project.redlock("ls")
    node.command("CONFIG", "SET", "maxmemory", "0")

    assert [one.state for one in refused].count(NodeState.VOTES) == 2
    assert "1 lock held, as seen on 3 of 3 nodes." in listed.out
    assert {one.state for one in node_status(project.service)} == {NodeState.VOTES}
    assert project.service.release(lease) >= 2


def test_new_node_that_refuses_writes_is_not_said_to_vote_soon(
    start_project: Callable[..., Project],
) -> None:
    """It gets no identity, so no wait begins. What it forgot, it cannot tell."""
    project = start_project(1, initialize=False)
    project.nodes[0].command("CONFIG", "SET", "min-replicas-to-write", "1")

    run = project.redlock("doctor", "--json")
    listed, begun = project.redlock("ls"), project.redlock("init", "--yes")

    codes = {one["code"] for one in run.document["findings"]}
    assert {"no-quorum", "refused-writes"} <= codes
    assert "quarantine" not in codes
    assert (listed.code, begun.code) == (3, 1)
    assert "NOREPLICAS" in listed.out
    assert "nothing was changed" in begun.err


@pytest.mark.parametrize(
    ("what", "said"),
    [("k", "Released k on 2 of 3 nodes,"), ("--claims", "Released 1 claim.")],
)
def test_release_names_a_node_that_refuses_it(
    project: Project, what: str, said: str
) -> None:
    """There the lock stays, as on a node that was not reached."""
    project.hold("k")
    claim(project)
    with refused("NOREPLICAS", project.nodes[:1]):
        run = project.redlock("release", what, "--yes")

    assert run.code == 0
    assert said in run.out
    assert f"Node {project.label(0)} answered " in run.out
    assert "NOREPLICAS" in run.out
    assert len(locks(project.nodes, "k")) == (1 if what == "k" else 3)


@pytest.mark.parametrize("what", ["k", "--claims"])
def test_release_that_a_majority_refuses_exits_with_3(
    project: Project, what: str
) -> None:
    """The lock is not said to have ended, or to have another holder."""
    project.hold("k")
    claim(project)
    with refused("NOREPLICAS", project.nodes):
        run = project.redlock("release", what, "--yes")

    assert run.code == 3
    assert run.out.count("NOREPLICAS") == 3
    assert "nothing was released" not in run.out
    assert len(locks(project.nodes, "k")) == 3
