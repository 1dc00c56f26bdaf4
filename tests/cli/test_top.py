"""``redlock top``: nodes, locks and rates, live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.basics.text import width_of
from celery_redlock.locks.limits import Limit
from tests.cli.project import Project, Running


def until_held(locks: int, top: Running) -> dict[str, Any]:
    """Read documents until this number of locks is held."""
    while True:
        document: dict[str, Any] = top.document()
        if document["held"] == locks:
            return document


@pytest.mark.long
def test_top_counts_acquired_and_released_locks(project: Project) -> None:
    """The rates count changes since the last refresh. Each node has a state."""
    with project.start("top", "--every", "0.05", "--json") as top:
        first = top.document()
        assert until_held(0, top)["taken_per_second"] == 0
        lease = project.hold("invoice:42")
        taken = until_held(1, top)
        for node in project.nodes:
            node.command("DEL", f"redlock:lock:{lease.key}")
        freed = until_held(0, top)
        run = top.interrupt()

    # Nothing is known of what was before.
    assert [first[f"{what}_per_second"] for what in ("taken", "freed")] == [None] * 2
    assert taken["taken_per_second"] > 0
    assert freed["freed_per_second"] > 0
    assert [node["votes"] for node in taken["nodes"]] == [True] * 3
    assert (run.code, run.err) == (0, "")


def test_top_shows_that_a_node_died(project: Project) -> None:
    """A node that dies meanwhile is shown with the reason."""
    with project.start("top", "--every", "0.05", "--json") as top:
        until_held(0, top)
        project.kill(0)
        while top.document()["nodes"][0]["votes"]:
            pass
        state = top.document()["nodes"][0]["state"]
        top.interrupt()

    assert state == "refused the connection"


@pytest.mark.long
def test_top_speaks_of_the_only_node(start_project: Callable[..., Project]) -> None:
    """There are no others of which too few could answer."""
    project = start_project(1)
    project.kill(0)

    shown = project.on_a_terminal("top", "--every", "0.1", until="refused the")

    assert "The node cannot tell which locks are held." in shown
    assert "Too few" not in shown


@pytest.mark.long
def test_top_counts_permits_for_a_start_apart(project: Project) -> None:
    """They are no locks, and the end of one is no release of a lock."""
    limits = (Limit("mail", 1), Limit("mail", 2, 60.0))
    project.hold("mail", limits=limits)

    with project.start("top", "--every", "0.05", "--json") as top:
        document = top.document()
        top.interrupt()
    shown = project.on_a_terminal("top", "--every", "0.1", until="proj.send_invoice")

    assert (document["held"], document["kept"]) == (1, 1)
    limit = {"key": "mail", "most": 2, "period": 60.0}
    assert document["limits"] == [{**limit, "in_use": 1}]
    assert "1 lock held" in shown
    assert "1 start kept" in shown
    assert "mail: 1 of 2 starts in 60 s are taken." in shown


@pytest.mark.long
def test_top_draws_on_a_screen_of_its_own(project: Project) -> None:
    """On a terminal, it switches to another screen and back at the end."""
    project.hold("invoice:42")

    shown = project.on_a_terminal("top", "--every", "0.1", until="invoice:42")

    enter, leave = "\x1b[?1049h", "\x1b[?1049l"
    assert enter in shown
    assert leave in shown
    assert "3 of 3 nodes vote" in shown
    # Each frame is drawn over the one before, so nothing flickers. No line is wrapped.
    assert "\x1b[?7l" in shown
    assert "\x1b[H" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize("every", ["-1", "nan", "1e9"])
def test_top_refuses_an_interval_that_is_none(project: Project, every: str) -> None:
    """It would ask the nodes without a pause, or never again."""
    run = project.redlock("top", "--every", every)

    assert run.code == 2
    assert "--every" in run.err


def test_table_counts_the_columns_of_wide_letters(project: Project) -> None:
    """A letter of two columns moves no other column of its row."""
    project.hold("顧客:一")
    project.hold("customer")

    lines = project.redlock("ls").out.splitlines()

    starts = {width_of(line.partition("proj.")[0]) for line in lines if "proj." in line}
    assert len(starts) == 1
