"""``redlock show KEY``: the holder of a lock, and the answer of each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.project import Project


def test_show_names_the_holder(project: Project) -> None:
    """It shows the holder, fence, votes, and the answer of each node."""
    lease = project.hold("invoice:42", started=1_700_000_000.0)

    run = project.redlock("show", "invoice:42")

    assert run.code == 0
    assert run.out.startswith("invoice:42 is held.")
    words = ("proj.send_invoice", "worker-1, pid 4711", "2023-11-14 22:13:20 UTC")
    assert all(word in run.out for word in (*words, str(lease.fence), "3 of 3 nodes"))
    assert run.out.count("held, ") == 3


def test_show_of_a_free_key_exits_with_1(project: Project) -> None:
    """A script sees from the exit code that the lock is free."""
    run = project.redlock("show", "free", "--json")

    assert run.code == 1
    assert (run.document["held"], run.document["holder"]) == (False, None)


def test_show_names_another_holder_on_one_node(project: Project) -> None:
    """The line of the node names the other holder."""
    project.hold("k")
    project.steal("k", 0)

    run = project.redlock("show", "k")

    assert "held by proj.other[other-id] on worker-9 (pid 99)" in run.out
    assert "2 of 3 nodes" in run.out
