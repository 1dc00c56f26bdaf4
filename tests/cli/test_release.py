"""``redlock release KEY``: what was shown is released, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.nodes.support import locks

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

Hold = Any
KEY = "redlock:lock:k"


def test_release_asks_and_releases_after_a_yes(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """The holder and the risk are shown before anything is done."""
    hold(three_nodes, "k")

    run = project.redlock("release", "k", typed="y\n")

    assert run.code == 0
    assert "held by proj.send_invoice[id-of-k] on worker-1 (pid 4711)" in run.out
    assert "two may run" in run.out
    assert "Release it?" in run.err
    assert "Released on 3 of 3 nodes." in run.out
    assert not locks(three_nodes, "k")


@pytest.mark.parametrize("typed", ["n\n", "\n", ""], ids=["no", "enter", "nobody"])
def test_release_without_a_yes_does_nothing(
    project: Project, three_nodes: DevNodes, hold: Hold, typed: str
) -> None:
    """No, a bare Enter, and nobody at the keyboard all leave the lock alone."""
    hold(three_nodes, "k")

    run = project.redlock("release", "k", typed=typed)

    assert run.code == 1
    assert "Nothing was done." in run.err
    assert len(locks(three_nodes, "k")) == 3


def test_release_dry_run_shows_and_does_nothing(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """It does not even ask."""
    hold(three_nodes, "k")

    run = project.redlock("release", "k", "--dry-run", "--json")

    assert run.code == 0
    assert run.document["holders"][0]["task_id"] == "id-of-k"
    assert run.document["released"] == {}
    assert len(locks(three_nodes, "k")) == 3


def test_release_of_a_free_key_exits_with_1(project: Project) -> None:
    """There is nothing to release, and nothing is asked."""
    run = project.redlock("release", "nobodys", "--yes")

    assert (run.code, run.out) == (1, "Nobody holds nobodys.\n")


def test_release_leaves_a_successor_alone(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A lock that changed hands while the question stood is not released."""
    hold(three_nodes, "k")
    successor = f"{'f' * 32}.{'0' * 16}\n7\nproj.other\nid\nhost\n1\n0"

    with project.start("release", "k") as asking:
        asking.until_said("Release it?")
        for node in three_nodes.nodes:
            node.command("SET", KEY, successor, "PX", 60_000)
        run = asking.type("y\n")

    assert run.code == 1
    assert "changed hands or ended meanwhile" in run.out
    assert [node.command("GET", KEY) for node in three_nodes.nodes] == [successor] * 3


def test_release_tells_which_nodes_it_could_not_reach(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """What a node that is down has of the lock stays there until its ttl ends."""
    hold(three_nodes, "k")
    three_nodes.nodes[0].kill()

    run = project.redlock("release", "k", "--yes")

    assert run.code == 0
    assert "Released on 2 of 3 nodes." in run.out
    assert "refused the connection" in run.out
    assert "until its ttl has ended" in run.out


def test_release_cleans_up_what_a_minority_has_left(
    project: Project, three_nodes: DevNodes
) -> None:
    """A lock on one node is shown for what it is, and can be released."""
    value = f"{'f' * 32}.{'0' * 16}\n7\nproj.other\nid\nhost\n1\n0"
    three_nodes.nodes[0].command("SET", KEY, value)

    run = project.redlock("release", "k", "--yes")

    assert "held by proj.other[id] on host (pid 1), on 1 of 3 nodes" in run.out
    assert "Released on 1 of 3 nodes." in run.out
    assert not locks(three_nodes, "k")


def test_release_says_when_a_lock_is_not_ours(
    project: Project, three_nodes: DevNodes
) -> None:
    """Somebody else's text in the place of a lock is named as such before it goes."""
    for node in three_nodes.nodes:
        node.command("SET", KEY, "by hand")

    run = project.redlock("release", "k", "--yes")

    assert "k was not written by celery-redlock, on 3 of 3 nodes." in run.out
    assert not locks(three_nodes, "k")
