"""``redlock show KEY``: who holds it, and what each node says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

Hold = Any


def test_show_tells_all_about_the_holder(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """Facts, fence, votes, and the answer of each node."""
    lease = hold(three_nodes, "invoice:42", started=1_700_000_000.0)

    run = project.redlock("show", "invoice:42")

    assert run.code == 0
    assert run.out.startswith("invoice:42 is held.")
    said = ("proj.send_invoice", "worker-1, pid 4711", "2023-11-14 22:13:20 UTC")
    assert all(words in run.out for words in (*said, str(lease.fence), "3 of 3 nodes"))
    assert run.out.count("held, ") == 3


def test_show_of_a_free_key_exits_with_1(project: Project) -> None:
    """Scripts learn from the exit code that nobody holds it."""
    run = project.redlock("show", "nobodys", "--json")

    assert run.code == 1
    assert (run.document["held"], run.document["holder"]) == (False, None)


def test_show_tells_what_it_could_not_see(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """With a node down it tells; with two down it says that it cannot."""
    hold(three_nodes, "invoice:42")

    three_nodes.nodes[0].kill()
    with_two = project.redlock("show", "invoice:42")
    three_nodes.nodes[1].kill()
    with_one = project.redlock("show", "invoice:42")

    assert with_two.code == 0
    assert "refused the connection" in with_two.out
    assert with_one.code == 3
    assert "Only 1 of 3 nodes answered." in with_one.out


def test_show_names_the_other_holder_on_a_node(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A node that names somebody else is seen at once."""
    hold(three_nodes, "k")
    value = f"{'f' * 32}.{'0' * 16}\n7\nproj.other\nother-id\nworker-9\n99\n0"
    three_nodes.nodes[0].command("SET", "redlock:lock:k", value, "PX", 60_000)

    run = project.redlock("show", "k")

    assert "held by proj.other[other-id] on worker-9 (pid 99)" in run.out
    assert "2 of 3 nodes" in run.out
