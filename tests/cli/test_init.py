"""``redlock init``: start a brand-new deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.nodes.support import client

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

Hold = Any
NOWHERE = ["redis://:correct-horse@127.0.0.1:1/0"]


def test_init_lets_new_nodes_vote(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """It shows the nodes and asks; after a yes a lock is granted at once."""
    nodes = start_nodes(3, initialize=False)

    run = project_on(nodes).redlock("init", typed="y\n")

    assert run.code == 0
    assert run.out.count("new or restarted") == 3
    assert "unused for the last 1 m 00 s (redlock_max_ttl)?" in run.err
    with client(nodes) as redlock:
        assert redlock.acquire("k").is_valid()


def test_init_changes_nothing_without_a_yes(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """Without a terminal the answer is no: the nodes still have to wait."""
    nodes = start_nodes(1, initialize=False)

    run = project_on(nodes).redlock("init")

    assert run.code == 1
    assert "Nothing was done." in run.err
    assert nodes.nodes[0].command("EXISTS", "redlock:meta") == 0


def test_init_refuses_nodes_with_live_locks(project: Project, hold: Hold) -> None:
    """A lock shows that the deployment is not new, in spite of the answer."""
    hold("invoice:42")

    run = project.redlock("init", "--yes")

    assert run.code == 1
    assert "is not new" in run.err


def test_init_shows_unreachable_nodes_without_passwords(project: Project) -> None:
    """It asks in spite of an unreachable node, and takes no for an answer."""
    run = project.redlock("init", typed="n\n", redlock_nodes=NOWHERE)

    assert run.code == 1
    assert "127.0.0.1:1/0  refused the connection" in run.out
    assert "Nothing was done" in run.err
    assert "correct-horse" not in run.out + run.err


def test_init_refuses_if_a_node_is_down(project: Project) -> None:
    """The error says that nothing was changed."""
    run = project.redlock("init", "--yes", redlock_nodes=NOWHERE)

    assert run.code == 1
    assert "nothing was changed" in run.err
    assert "correct-horse" not in run.out + run.err
