"""``redlock init`` and ``reconfigure``: begin a deployment, and change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.errors import QuorumUnreachable
from tests.nodes.support import PATIENT, client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from celery_redlock.devnodes import DevNodes
    from tests.cli.project import Project

Hold = Any
MAX_TTL = 0.5  # seconds, so that a quarantine is one of 1.5 s
SHORT = {"redlock_ttl": 0.4, "redlock_max_ttl": MAX_TTL, "redlock_node_timeout": 0.1}


def lock(urls: Sequence[Any], max_ttl: float = MAX_TTL) -> int:
    """Take a lock on these nodes, with a short max_ttl; return its fence."""
    with client(urls, ttl=0.4, max_ttl=max_ttl, node_timeout=0.1) as redlock:
        return redlock.acquire("k").fence


# -- init --------------------------------------------------------------------------


def test_init_lets_new_nodes_vote(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """It shows the nodes and asks; after a yes a lock is granted at once."""
    nodes = start_nodes(3, initialize=False)

    run = project_on(nodes).redlock("init", typed="y\n")

    assert run.code == 0
    assert run.out.count("new or restarted") == 3
    assert "1 m 00 s (redlock_max_ttl)" in run.err
    with client(nodes) as redlock:
        assert redlock.acquire("k").is_valid()


def test_init_does_nothing_without_a_yes(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """Nobody at the keyboard is a no: the nodes still have to wait."""
    nodes = start_nodes(1, initialize=False)

    run = project_on(nodes).redlock("init")

    assert run.code == 1
    assert "Nothing was done." in run.err
    assert nodes.nodes[0].command("EXISTS", "redlock:meta") == 0


def test_init_refuses_where_locks_live(
    project: Project, three_nodes: DevNodes, hold: Hold
) -> None:
    """A lock shows that the deployment is not new, whatever is answered."""
    hold(three_nodes, "invoice:42")

    run = project.redlock("init", "--yes")

    assert run.code == 1
    assert "is not new" in run.err


# -- reconfigure -------------------------------------------------------------------


def test_reconfigure_moves_to_more_nodes(
    start_nodes: Callable[..., DevNodes],
    project_on: Callable[..., Project],
    tmp_path: Path,
) -> None:
    """Three nodes become five, read from a file; the fence goes on growing."""
    old = start_nodes(3, max_ttl=MAX_TTL)
    more = start_nodes(2, max_ttl=MAX_TTL, initialize=False)
    urls = [*old.urls, *more.urls]
    (tmp_path / "five").write_text("\n".join(urls))
    before = lock(old.urls)

    run = project_on(old, **SHORT).redlock("reconfigure", "--to", "@five", typed="y\n")

    assert run.code == 0, run.err
    assert (run.out.count("stays"), run.out.count("new\n")) == (3, 2)
    assert "All 5 nodes vote for the new configuration" in run.out
    assert lock(urls) > before
    with pytest.raises(QuorumUnreachable, match="set up"):
        lock(old.urls)


def test_reconfigure_replaces_a_named_node(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """Nodes can have names; the one that is replaced is to be shut down."""
    nodes = start_nodes(4, initialize=False)
    first, second, third, fourth = nodes.urls
    kept = [{"name": "a", "url": first}, {"name": "b", "url": second}]
    short = {"ttl": 0.4, "max_ttl": MAX_TTL, "node_timeout": 0.1}
    with client([*kept, third], **short) as redlock:
        redlock.initialize()
    project = project_on(nodes, **SHORT)

    run = project.redlock(
        "reconfigure",
        "--from",
        f"a={first},b={second},{third}",
        "--to",
        f"a={first},b={second},c={fourth}",
        "--yes",
        "--json",
    )

    assert run.code == 0, run.err
    assert run.document["gone"] == [f"127.0.0.1:{nodes.nodes[2].port}/0"]
    assert run.document["config"].endswith("nodes a, b, c")
    assert lock([*kept, {"name": "c", "url": fourth}])


def test_reconfigure_changes_max_ttl(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """The nodes stay, and serve clients that have the new max_ttl only."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)

    run = project_on(nodes, **SHORT).redlock("reconfigure", "--max-ttl", "1", "--yes")

    assert run.code == 0, run.err
    assert "redlock_max_ttl is 0.5 s, and 1 s afterwards." in run.out
    assert lock(nodes.urls, max_ttl=1)


def test_reconfigure_goes_on_where_it_was_interrupted(
    start_nodes: Callable[..., DevNodes], project_on: Callable[..., Project]
) -> None:
    """Ctrl-C while it waits leaves nodes closed; the same command finishes it."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    project = project_on(nodes, **SHORT)
    words = ["reconfigure", "--max-ttl", "2", "--yes"]

    with project.start(*words) as moving:
        while "are closed" not in moving.line():
            pass
        interrupted = moving.interrupt()
    with pytest.raises(QuorumUnreachable):
        lock(nodes.urls)
    again = project.redlock(*words)

    assert interrupted.code == 3
    assert "run it again, with the same arguments" in interrupted.err
    assert again.code == 0, again.err
    assert lock(nodes.urls, max_ttl=2)


def test_reconfigure_wants_to_know_what_shall_change(project: Project) -> None:
    """Nothing given, nothing different and a file that is not there are wrong usage."""
    nothing = project.redlock("reconfigure")
    same = project.redlock("reconfigure", "--max-ttl", "60", "--yes")
    no_file = project.redlock("reconfigure", "--to", "@nowhere", "--yes")

    assert [run.code for run in (nothing, same, no_file)] == [2, 2, 2]
    assert "Say what shall change" in nothing.err
    assert "Nothing to do" in same.err
    assert "nowhere cannot be read" in no_file.err


def test_reconfigure_without_a_yes_does_nothing(
    project: Project, three_nodes: DevNodes
) -> None:
    """What would be changed is shown, and stays as it is."""
    run = project.redlock("reconfigure", "--max-ttl", "120", typed="n\n")

    assert run.code == 1
    assert "Nothing is locked or renewed for about 2 m 03 s" in run.out
    with client(three_nodes, node_timeout=PATIENT) as redlock:
        assert redlock.acquire("k").is_valid()
