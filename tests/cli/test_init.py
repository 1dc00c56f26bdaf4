"""``redlock init``: start a brand-new deployment."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from celery_redlock.devnodes import ServerOptions
from tests.cli.project import Project
from tests.nodes.support import until

NOWHERE = ["redis://:correct-horse@127.0.0.1:1/0"]


def test_init_lets_new_nodes_vote(start_project: Callable[..., Project]) -> None:
    """It shows the nodes and asks; after a yes a lock is granted at once."""
    patient = {"redlock_node_timeout": 1.0}
    project = start_project(3, patient, initialize=False)

    run = project.redlock("init", typed="y\n")

    assert run.code == 0
    assert run.out.count("in quarantine, ") == 3
    assert "no worker held a lock on " in run.err
    assert "in the last 1 m 00 s (redlock_max_ttl)?" in run.err
    assert project.service.acquire("k").is_valid()


def test_init_tells_one_wait_in_one_form(
    start_project: Callable[..., Project],
) -> None:
    """The table has the time in minutes, and so has the reason for which it refuses."""
    project = start_project(3)
    project.service.release(project.service.acquire("k"))
    for node in project.nodes:
        node.restart()
    until(lambda: project.service.check().retry_after is not None)

    run = project.redlock("init", "--yes")

    assert run.code == 1
    assert re.search(r"in quarantine, 1 m 0\d s left", run.out), run.out
    assert re.search(r"the nodes vote by themselves in 1 m 0\d s\.", run.err), run.err


def test_init_changes_nothing_without_a_yes(
    start_project: Callable[..., Project],
) -> None:
    """Without a terminal the answer is no: the nodes have to wait."""
    project = start_project(1, initialize=False)

    run = project.redlock("init")

    assert run.code == 1
    assert "No wait was ended: nodes vote by themselves when theirs is over." in run.err
    assert not project.nodes[0].command("HEXISTS", "redlock:meta", "votes")


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_init_refuses_if_a_node_is_down(
    project: Project, words: tuple[str, ...]
) -> None:
    """It asks nothing, as no answer would change that, and shows no password."""
    run = project.redlock("init", *words, typed="y\n", redlock_nodes=NOWHERE)

    assert run.code == 1
    assert "127.0.0.1:1/0  refused the connection" in run.out
    assert "nothing was changed" in run.err
    assert "Is it certain" not in run.err
    assert "correct-horse" not in run.out + run.err


def test_init_with_a_wrong_password_says_to_correct_it(
    start_project: Callable[..., Project],
) -> None:
    """The node runs: to start it again would lose its locks."""
    options = ServerOptions(username="u", password="right")
    project = start_project(1, options=options, initialize=False)
    wrong = project.urls[0].replace("right", "wrong")

    run = project.redlock("init", redlock_nodes=[wrong])

    assert run.code == 1
    assert "rejected the credentials. " in run.err
    remedy = "Correct its user and password in redlock_nodes, or switch that user on"
    assert remedy in run.err
    assert "Start" not in run.err


def test_init_asks_nothing_where_all_nodes_vote(
    start_project: Callable[..., Project],
) -> None:
    """Without an answer it says how to give one, and changes nothing."""
    project = start_project(initialize=False)

    refused = project.redlock("init", typed="")
    project.redlock("init", "--yes")
    again = project.redlock("init", typed="")

    assert refused.code == 1
    assert "There is no terminal to answer at: add --yes." in refused.err
    assert again.code == 0
    assert "no worker held a lock" not in again.err


def test_init_asks_nothing_where_nodes_are_set_up_differently(
    project: Project,
) -> None:
    """No answer would change that it refuses. The error has both settings."""
    run = project.redlock("init", typed="y\n", redlock_max_ttl=120.0)

    assert run.code == 1
    assert "is set up differently, so nothing was changed" in run.err
    assert "max_ttl 60 s; this client has max_ttl 120 s" in run.err
    assert "Is it certain" not in run.err


def test_init_asks_nothing_where_nodes_were_in_use(
    start_project: Callable[..., Project],
) -> None:
    """One has restarted, and the others show that the deployment is not new."""
    project = start_project(3)
    project.hold("k")
    project.nodes[0].restart()

    run = project.redlock("init", typed="y\n")

    assert run.code == 1
    assert "The nodes were in use before they lost their memory" in run.err
    assert "Is it certain" not in run.err


def test_init_beside_a_live_lock_says_that_nodes_vote_by_themselves(
    project: Project,
) -> None:
    """They may all vote already: then there is nothing to wait for."""
    project.hold("k")

    run = project.redlock("init", "--yes")

    assert run.code == 1
    assert "holds live locks" in run.err
    assert "Nodes that do not vote yet come to it by themselves" in run.err
    assert "Wait until" not in run.err
