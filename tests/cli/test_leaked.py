"""``redlock leaked``: keys that never expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

Hold = Any


def test_leaked_does_not_list_expiring_or_lasting_keys(
    project: Project, hold: Hold
) -> None:
    """Locks have a ttl; the fences and the configuration of a node must stay."""
    hold("invoice:42")

    run = project.redlock("leaked")

    assert (run.code, run.out) == (0, "Every key on 3 nodes has a ttl.\n")


def test_leaked_finds_locks_without_a_ttl_on_any_node(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """Each key without a ttl is listed with its node."""
    hold("invoice:42")
    three_nodes.nodes[1].command("PERSIST", "redlock:lock:invoice:42")
    three_nodes.nodes[2].command("RPUSH", "redlock:lock:list", "1")
    three_nodes.nodes[2].command("SET", "not-ours", "1")

    run = project.redlock("leaked", "--json")

    labels = [f"127.0.0.1:{node.port}/0" for node in three_nodes.nodes]
    assert run.code == 1
    assert run.document["leaked"] == {
        labels[1]: ["redlock:lock:invoice:42"],
        labels[2]: ["redlock:lock:list"],
    }


def test_leaked_names_nodes_that_did_not_answer(
    project: Project, three_nodes: DevNodes
) -> None:
    """A dead node may have such keys; with a majority down it exits with 3."""
    three_nodes.nodes[0].kill()
    with_two = project.redlock("leaked")
    three_nodes.nodes[1].kill()
    with_one = project.redlock("leaked")

    assert with_two.code == 0
    assert "refused the connection" in with_two.out
    assert with_one.code == 3
