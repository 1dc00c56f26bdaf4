"""``redlock reconfigure``: change the list of nodes, or max_ttl."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import QuorumUnreachable
from tests.cli.project import Project
from tests.nodes.support import client, refusal

MAX_TTL = 0.5  # seconds, which makes the quarantine 1.5 s
SHORT = {"ttl": 0.4, "max_ttl": MAX_TTL, "node_timeout": 0.1}
SETTINGS = {f"redlock_{name}": value for name, value in SHORT.items()}
LONG = 6.0  # seconds: a max_ttl that leaves time to press Ctrl-C
LONG_SETTINGS = {**SETTINGS, "redlock_max_ttl": LONG}


def lock(urls: Sequence[Any], max_ttl: float = MAX_TTL, wait: float = 10.0) -> int:
    """Acquire a lock on these nodes with a short max_ttl, and return its fence."""
    with client(urls, **{**SHORT, "max_ttl": max_ttl}) as redlock:
        return redlock.acquire("k", wait=wait).fence


def test_reconfigure_moves_to_more_nodes(
    start_project: Callable[..., Project],
    start_nodes: Callable[..., DevNodes],
    tmp_path: Path,
) -> None:
    """Three nodes become five, read from a file. Fences go on growing."""
    project = start_project(3, SETTINGS, max_ttl=MAX_TTL)
    more = start_nodes(2, max_ttl=MAX_TTL, initialize=False)
    urls = [*project.urls, *more.urls]
    five = tmp_path / "five"
    five.write_text("\n".join(urls))
    before = lock(project.urls)

    run = project.redlock("reconfigure", "--to", f"@{five}", typed="y\n")

    assert run.code == 0, run.err
    assert (run.out.count("stays"), run.out.count("new\n")) == (3, 2)
    assert "5 of 5 nodes vote for the new configuration" in run.out
    assert lock(urls) > before
    with client(project.urls, **SHORT) as redlock:
        refusal(redlock, says="has another view of the deployment")


def test_reconfigure_replaces_a_named_node(
    start_project: Callable[..., Project],
) -> None:
    """Nodes can have names. The command names the removed node."""
    project = start_project(4, SETTINGS, initialize=False)
    first, second, third, fourth = project.urls
    kept = [{"name": "a", "url": first}, {"name": "b", "url": second}]
    with client([*kept, third], **SHORT) as redlock:
        redlock.initialize()
    before = f"a={first},b={second},{third}"
    after = f"a={first},b={second},c={fourth}"

    words = ("--from", before, "--to", after, "--yes", "--json")
    run = project.redlock("reconfigure", *words)

    assert run.code == 0, run.err
    assert run.document["gone"] == [project.label(2)]
    assert run.document["config"].endswith("nodes a, b, c")
    assert lock([*kept, {"name": "c", "url": fourth}])


def test_reconfigure_asks_for_no_end_of_a_node_that_is_gone(
    start_project: Callable[..., Project],
) -> None:
    """The operator has said that it is switched off for good."""
    project = start_project(4, SETTINGS, initialize=False)
    old, new = project.urls[:3], [*project.urls[:2], project.urls[3]]
    with client(old, **SHORT) as redlock:
        redlock.initialize()
    gone = project.label(2)
    project.kill(2)

    words = ("--from", ",".join(old), "--to", ",".join(new), "--gone", gone, "--yes")
    run = project.redlock("reconfigure", *words)

    assert run.code == 0, run.err
    assert "Update all clients now" in run.out
    assert "Shut down" not in run.out


def test_reconfigure_changes_max_ttl(start_project: Callable[..., Project]) -> None:
    """The nodes stay, and serve only clients with the new max_ttl."""
    project = start_project(3, SETTINGS, max_ttl=MAX_TTL)

    run = project.redlock("reconfigure", "--max-ttl", "1", "--yes")

    assert run.code == 0, run.err
    assert "redlock_max_ttl is 0.5 s, and 1 s afterwards." in run.out
    assert lock(project.urls, max_ttl=1)


@pytest.mark.parametrize(("seconds", "is_told"), [("30", False), ("29", True)])
def test_plan_says_that_the_new_max_ttl_is_below_the_ttl(
    project: Project, seconds: str, *, is_told: bool
) -> None:
    """Each client would refuse its settings after the change."""
    run = project.redlock("reconfigure", "--max-ttl", seconds, typed="n\n")

    said = "redlock_ttl is 30 s: lower it to 29 s at most, too. Else no client starts."
    assert (said in run.out) is is_told


@pytest.mark.parametrize(
    ("more", "code", "said", "plan"),
    [
        ((), 0, "have the new configuration already", "Until the nodes vote for"),
        (("--abort",), 3, "Nothing was changed.", "When this change is taken back,"),
    ],
    ids=["again", "abort"],
)
def test_plan_of_a_change_that_is_finished_is_no_report(
    start_project: Callable[..., Project],
    more: tuple[str, ...],
    code: int,
    said: str,
    plan: str,
) -> None:
    """It is shown before the nodes are asked, so it states no fact about locks."""
    project = start_project(3, SETTINGS, max_ttl=MAX_TTL)
    words = ("reconfigure", "--max-ttl", "1", "--yes")
    assert project.redlock(*words).code == 0

    run = project.redlock(*words, *more)

    assert run.code == code
    assert said in run.out + run.err
    assert plan in run.out
    assert "No lock is granted" not in run.out
    assert "This change is taken back:" not in run.out


@pytest.mark.long
def test_reconfigure_resumes_after_an_interrupt(
    start_project: Callable[..., Project],
) -> None:
    """Ctrl-C during the wait leaves the nodes closed; the same command finishes."""
    project = start_project(3, LONG_SETTINGS, max_ttl=LONG)
    words = ("reconfigure", "--max-ttl", "7", "--yes")

    with project.start(*words) as moving:
        while "are closed" not in moving.line():
            pass
        interrupted = moving.interrupt()
    with pytest.raises(QuorumUnreachable):
        lock(project.urls, max_ttl=LONG, wait=0.0)
    again = project.redlock(*words)

    assert interrupted.code == 3
    assert "run it again, with the same arguments" in interrupted.err
    assert "--abort" in interrupted.err
    assert again.code == 0, again.err
    assert lock(project.urls, max_ttl=7)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"redis://:s\xffecret@127.0.0.1:1/0\n", "cannot be read: it is no text in"),
        (b"\n", "No node is named."),
        (
            b"\xef\xbb\xbfredis://:secret@127.0.0.1:1/0\n",
            "Every future node must be up",
        ),
    ],
    ids=["no text", "empty", "marked"],
)
def test_file_of_nodes_that_cannot_be_used_is_refused(
    project: Project, tmp_path: Path, content: bytes, said: str
) -> None:
    """No traceback, and no part of a password. A mark of UTF-8 belongs to no URL."""
    file = tmp_path / "nodes"
    file.write_bytes(content)

    run = project.redlock("reconfigure", "--to", f"@{file}", "--yes")

    assert said in run.err
    assert "Nothing was" in run.err
    assert "ecret" not in run.out + run.err


def test_reconfigure_without_a_change_is_wrong_usage(project: Project) -> None:
    """No option, an equal value and a missing file end with exit code 2."""
    nothing = project.redlock("reconfigure")
    same = project.redlock("reconfigure", "--max-ttl", "60", "--yes")
    no_file = project.redlock("reconfigure", "--to", "@nowhere", "--yes")

    assert [run.code for run in (nothing, same, no_file)] == [2, 2, 2]
    assert "Say what to change" in nothing.err
    assert "Nothing to do" in same.err
    assert "nowhere cannot be read" in no_file.err


def test_abort_shows_the_nodes_that_vote_after_it(project: Project) -> None:
    """The old nodes vote again, and a node that was to be new is no node of these."""
    planned = [*project.urls[:2], "redis://127.0.0.1:1/0"]
    words = ("reconfigure", "--to", ",".join(planned), "--max-ttl", "120", "--abort")

    run = project.redlock(*words, typed="n\n")

    rows = dict(re.findall(r"^(127\.\S+) +(\S.*)$", run.out, re.MULTILINE))
    old = {project.label(i): "votes again" for i in range(len(project.nodes))}
    assert rows == {**old, "127.0.0.1:1/0": "is not used"}
    assert f"{len(old)} nodes afterwards, and redlock_max_ttl is 60 s" in run.out
    assert "removed" not in run.out


@pytest.mark.parametrize(
    ("kept", "new", "is_told"), [(0, 1, True), (1, 2, True), (2, 1, False)]
)
def test_plan_says_what_is_not_moved(
    project: Project, kept: int, new: int, *, is_told: bool
) -> None:
    """New nodes that are a majority alone know no claim, so a call may run again."""
    planned = [
        *project.urls[:kept],
        *(f"redis://127.0.0.1:{n + 1}" for n in range(new)),
    ]

    run = project.redlock("reconfigure", "--to", ",".join(planned), typed="n\n")

    assert ("Claims, cool-downs, counted starts and backlogs" in run.out) == is_told


def test_reconfigure_without_a_yes_does_nothing(project: Project) -> None:
    """The command shows the change and does not make it."""
    run = project.redlock("reconfigure", "--max-ttl", "120", typed="n\n")

    assert run.code == 1
    assert "no lock is granted or renewed: about 2 m 03 s" in run.out
    assert project.service.acquire("k").is_valid()
