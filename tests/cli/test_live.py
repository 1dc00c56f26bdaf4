"""``redlock top`` and ``ls --watch``: what is going on, drawn anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project, Running

Hold = Any


def until(watching: Running, *, held: int) -> dict[str, Any]:
    """Read documents until so many locks are held."""
    while True:
        document: dict[str, Any] = json.loads(watching.line())
        if document["held"] == held:
            return document


def test_top_counts_what_comes_and_goes(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """Rates are those since the last look; nodes have their state."""
    with project.start("top", "--every", "0.05", "--json") as watching:
        assert until(watching, held=0)["taken_per_second"] == 0
        lease = hold(three_nodes, "invoice:42")
        taken = until(watching, held=1)
        for node in three_nodes.nodes:
            node.command("DEL", f"redlock:lock:{lease.key}")
        freed = until(watching, held=0)
        run = watching.interrupt()

    assert taken["taken_per_second"] > 0
    assert freed["freed_per_second"] > 0
    assert [node["votes"] for node in taken["nodes"]] == [True] * 3
    assert (run.code, run.err) == (0, "")


def test_top_shows_a_node_that_goes(project: Project, three_nodes: DevNodes) -> None:
    """A node that dies while one watches is shown as such, with the reason."""
    with project.start("top", "--every", "0.05", "--json") as watching:
        until(watching, held=0)
        three_nodes.nodes[0].kill()
        while json.loads(watching.line())["nodes"][0]["votes"]:
            pass
        state = json.loads(watching.line())["nodes"][0]["state"]
        watching.interrupt()

    assert state == "refused the connection"


def test_top_draws_on_a_terminal_and_leaves_it(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """It has a screen to itself, and gives it back at the end."""
    hold(three_nodes, "invoice:42")

    shown = project.on_a_terminal("top", "--every", "0.1", until="invoice:42")

    enter, leave = "\x1b[?1049h", "\x1b[?1049l"
    assert enter in shown
    assert leave in shown
    assert "3 of 3 nodes vote" in shown


def test_ls_watches_until_it_is_interrupted(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """``--watch`` looks again and again, and Ctrl-C is no error."""
    with project.start("ls", "--watch", "--every", "0.05", "--json") as watching:
        assert json.loads(watching.line())["locks"] == []
        hold(three_nodes, "invoice:42")
        while not json.loads(watching.line())["locks"]:
            pass
        run = watching.interrupt()

    assert (run.code, run.err) == (0, "")
